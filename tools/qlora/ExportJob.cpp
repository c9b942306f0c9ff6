// SPDX-License-Identifier: MIT

// Finds the base of an adapter, and the ways to merge it.

#include "tools/qlora/ExportJob.h"

#include <algorithm>
#include <filesystem>

#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Options/AdapterOptions.h"
#include "runtime/Watch/RunFolder.h"
#include "tools/qlora/HubCache.h"

namespace qlora {

namespace fs = std::filesystem;

const char *nameOf(BaseChoice choice) {
  return choice == BaseChoice::kFiles ? "files" : "dequantized";
}

bool isThere(const fs::path &path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// Refuses a folder that has no adapter.
static Status checkRun(const std::string &run) {
  if (!isThere(run))
    return Status::notFound("'{}' does not exist. Fix: qlora export RUN_DIR, "
                            "the output folder of a training",
                            run);
  if (isThere(fs::path(run) / kAdapterWeights))
    return Status::ok();
  if (isThere(fs::path(run) / "config.json"))
    return Status::invalid("'{}' is a model, not an adapter. Fix: use the "
                           "folder as it is, or convert_hf_to_gguf.py of "
                           "llama.cpp",
                           run);
  return Status::invalid("'{}' has no adapter, because its run has not ended. "
                         "Fix: name one of its checkpoint folders",
                         run);
}

/// Reads the settings of the run, which a checkpoint has in its parent folder.
static Status readSettings(ExportJob &job) {
  fs::path folder = fs::path(job.run).lexically_normal();
  if (!folder.has_filename())
    folder = folder.parent_path();
  if (!isThere(folder / kSettingsFile) &&
      folder.filename().string().starts_with("checkpoint-"))
    folder = fs::absolute(folder).parent_path();
  job.logFolder = folder.string();
  job.hasSettings = isThere(folder / kSettingsFile);
  if (job.hasSettings)
    return job.trained.applyYaml((folder / kSettingsFile).string());
  QLORA_ASSIGN_OR_RETURN(const auto settings, adapterSettings(job.run));
  return job.trained.applySettings(settings);
}

/// Finds the model folder that the adapter was trained on.
static StatusOr<std::string> findTrainedBase(const ExportJob &job) {
  const std::string named = job.trained.text("model_name_or_path");
  if (isThere(named))
    return named;
  QLORA_ASSIGN_OR_RETURN(const auto settings, adapterSettings(job.run));
  for (const OptionSetting &setting : settings)
    if (setting.row->name == std::string_view("model_name_or_path"))
      if (auto folder = modelFolder(setting.text);
          folder.isOk() && isThere(*folder))
        return folder;
  if (named.empty())
    return Status::invalid("'{}' names no base model. Fix: --base DIR",
                           job.run);
  return Status::notFound("the base model '{}' of '{}' does not exist. Fix: "
                          "--base DIR, or fetch it again",
                          named, job.run);
}

/// Refuses another model than the training's: its tensors that are stored alike
/// in both must have the same values.
static Status checkSameModel(const std::string &base,
                             const std::string &trained) {
  QLORA_ASSIGN_OR_RETURN(const ModelFiles ours, ModelFiles::open(base));
  QLORA_ASSIGN_OR_RETURN(const ModelFiles theirs, ModelFiles::open(trained));
  constexpr uint64_t kMost = 1 << 16; // norms are smaller
  for (const std::string &name : ours.tensorNames()) {
    const ModelFiles::Entry a = ours.find(name), b = theirs.find(name);
    if (!b.tensor || a.tensor->dtype != b.tensor->dtype ||
        a.tensor->byteCount() > kMost)
      continue;
    std::vector<uint8_t> first(a.tensor->byteCount());
    std::vector<uint8_t> second(b.tensor->byteCount());
    QLORA_RETURN_IF_ERROR(a.file->read(*a.tensor, 0, first));
    QLORA_RETURN_IF_ERROR(b.file->read(*b.tensor, 0, second));
    if (first != second)
      return Status::invalid("--base '{}' is another model than '{}', on which "
                             "the adapter was trained: '{}' differs. Fix: "
                             "--base DIR, that model in 16 bits",
                             base, trained, name);
  }
  return Status::ok();
}

/// Finds the bases that the adapter can be added to.
static Status findChoices(ExportJob &job) {
  const bool isStored = job.config.storedFormat != nullptr;
  const bool isQuantizedOnRead = !job.trained.quantizedFormat().empty();
  if (!job.base.empty()) {
    QLORA_ASSIGN_OR_RETURN(const ModelConfig config,
                           readHfConfig(job.base, {}));
    if (config.storedFormat)
      return Status::invalid("--base '{}' is quantized. Fix: --base DIR, the "
                             "model in 16 bits, or leave it out",
                             job.base);
    if (job.base != job.trainedBase)
      QLORA_RETURN_IF_ERROR(checkSameModel(job.base, job.trainedBase));
    job.choices.push_back(BaseChoice::kFiles);
  } else if (!isStored) {
    job.base = job.trainedBase;
    job.choices.push_back(BaseChoice::kFiles);
  } else {
    job.missingChoice = "The base is quantized in its files; --base DIR names "
                        "the model in 16 bits, to compare with.";
  }
  if (!isStored && !isQuantizedOnRead)
    return Status::ok();
  if (isQuantizedOnRead && !isStored &&
      leavesResidual(job.trained.text("init_lora_weights"))) {
    job.missingChoice = "The training quantized what init_lora_weights left of "
                        "the base, so its dequantized values do not fit the "
                        "adapter.";
    return Status::ok();
  }
  job.choices.push_back(BaseChoice::kDequantized);
  return Status::ok();
}

static std::string defaultOutput(const ExportJob &job) {
  fs::path folder = fs::path(job.run).lexically_normal();
  if (!folder.has_filename())
    folder = folder.parent_path();
  const std::string quantize = job.own.text("quantize");
  return folder.string() + "-" + job.format +
         (quantize == "none" ? "" : "-" + quantize);
}

StatusOr<ExportJob> ExportJob::find(const std::string &word, Options given) {
  ExportJob job;
  job.own = std::move(given);
  job.format = job.own.text("to");
  job.run = word;
  QLORA_RETURN_IF_ERROR(checkRun(word));
  QLORA_RETURN_IF_ERROR(readSettings(job));
  job.output = job.own.text("output");
  if (job.output.empty())
    job.output = defaultOutput(job);
  while (job.output.size() > 1 && job.output.ends_with('/'))
    job.output.pop_back();
  if (const std::string base = job.own.text("base"); !base.empty()) {
    QLORA_ASSIGN_OR_RETURN(job.base, modelFolder(base));
    if (!isThere(job.base))
      return Status::notFound("--base: there is no folder '{}'", job.base);
  }
  auto trainedBase = findTrainedBase(job);
  if (!trainedBase.isOk() && job.base.empty())
    return trainedBase.status();
  job.trainedBase = trainedBase.isOk() ? *trainedBase : job.base;
  QLORA_ASSIGN_OR_RETURN(job.config, readHfConfig(job.trainedBase, {}));
  job.baseName = job.trained.text("adapter_base_name");
  if (job.baseName.empty())
    job.baseName = fs::path(job.trainedBase).filename().string();
  QLORA_RETURN_IF_ERROR(findChoices(job));
  return job;
}

std::string ExportJob::headName() const {
  return config.modulePath(config.family->modules.head) + ".weight";
}

static BaseForm formOf(const ExportJob &job) {
  const ModelConfig &config = job.config;
  const Family &family = *config.family;
  const Experts &experts = family.experts;
  BaseForm form;
  form.linearsAreInOut = family.layout == LinearLayout::kInOut;
  form.expertsAreInOut = experts.areStacked;
  if (config.tied) {
    const ModuleNames &names = family.modules;
    form.tiedEmbedding = config.modulePath(names.embedding) + ".weight";
    form.tiedHead = job.headName();
  }
  if (!experts.isThere())
    return form;
  form.renamed = {{std::string(experts.module), std::string(experts.each)},
                  {std::string(experts.routerModule),
                   std::string(experts.router)}};
  for (size_t i = 0; i < form.projections.size(); ++i)
    form.projections[i] = experts.projections[i];
  return form;
}

/// Returns the request for a base alone.
static MergeRequest baseRequest(const ExportJob &job, BaseChoice choice) {
  MergeRequest request;
  request.base = choice == BaseChoice::kFiles ? job.base : job.trainedBase;
  request.form = formOf(job);
  return request;
}

StatusOr<MergedModel> ExportJob::open(BaseChoice choice,
                                      const LoadedModule *program) const {
  MergeRequest request = baseRequest(*this, choice);
  request.adapter = run;
  if (choice == BaseChoice::kDequantized && !config.storedFormat)
    request.quantized = program;
  return MergedModel::open(request);
}

StatusOr<MergedModel> ExportJob::openBase(BaseChoice choice) const {
  return MergedModel::open(baseRequest(*this, choice));
}

std::string ExportJob::title() const {
  return fs::path(output).lexically_normal().filename().string();
}

WeightType ExportJob::weightType() const {
  const std::string name = own.text("outtype");
  if (name == "bf16")
    return SafetensorsDtype::kBF16;
  if (name == "f16")
    return SafetensorsDtype::kF16;
  if (name == "f32")
    return SafetensorsDtype::kF32;
  return {};
}

} // namespace qlora
