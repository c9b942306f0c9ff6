// SPDX-License-Identifier: MIT

// `qlora export --to gguf`: the merged model as one file for llama.cpp. `--to
// ollama` adds a Modelfile.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "tools/qlora/ExportCandidates.h"
#include "tools/qlora/ExportFacts.h"
#include "tools/qlora/ExportFormats.h"
#include "tools/qlora/GgufExport.h"
#include "tools/qlora/GgufVocabulary.h"
#include "tools/qlora/ScratchFolder.h"
#include "tools/qlora/TargetRules.h"

namespace qlora {

namespace {

/// One export to a GGUF file.
class GgufJob {
public:
  static StatusOr<GgufJob> plan(const ExportJob &job);
  Status run();

private:
  explicit GgufJob(const ExportJob &job) : job(job) {}
  bool isForOllama() const { return job.format == "ollama"; }
  void printPlan(const MergedModel &model, const GgufExport &file) const;
  CandidateForm form();
  Status write(const MergedModel &model, BaseChoice choice,
               const std::string &folder);
  StatusOr<double> measure(LossMeter &meter, const MergedModel &model,
                           BaseChoice choice, const std::string &folder) const;
  StatusOr<ReaderResult> readBackOf(const Candidate &best,
                                    const LossMeter &meter) const;
  std::string usage() const;
  Status writeTexts(const std::string &folder, const ExportReport &report,
                    const std::string &sentence) const;

  const ExportJob &job;
  const GgufMix *mix = nullptr;
  std::string title;    ///< name of the output folder
  std::string type;     ///< "Q4_K_M"
  std::string fileName; ///< "model-Q4_K_M.gguf"
  std::vector<BaseChoice> choices;
  std::vector<std::string> notes;
  std::string cause; ///< why llama.cpp's loss may differ, or empty
  GgufVocabulary vocabulary;
  std::map<BaseChoice, GgufExport> files; ///< that were written
};

} // namespace

StatusOr<GgufJob> GgufJob::plan(const ExportJob &job) {
  GgufJob made(job);
  QLORA_ASSIGN_OR_RETURN(const ExportFacts facts,
                         factsOfAdapter(job.run, job.config));
  QLORA_RETURN_IF_ERROR(checkFindings(job, ggufFindings(facts), made.notes));
  if (!made.notes.empty())
    made.cause = made.notes.front();
  std::string outtype = job.own.text("outtype");
  if (outtype == "auto")
    outtype = made.isForOllama() ? "q4_k_m" : "f16";
  QLORA_ASSIGN_OR_RETURN(made.mix, findGgufMix(outtype));
  for (const char c : outtype)
    made.type += static_cast<char>(std::toupper(c));
  made.title = job.title();
  made.fileName = fmt::format("{}-{}.gguf", made.title, made.type);
  QLORA_ASSIGN_OR_RETURN(made.choices, choicesOf(job));
  QLORA_ASSIGN_OR_RETURN(const MergedModel model,
                         job.open(made.choices.front(), nullptr));
  QLORA_ASSIGN_OR_RETURN(const GgufExport file,
                         GgufExport::plan(job, model, *made.mix));
  QLORA_ASSIGN_OR_RETURN(
      made.vocabulary,
      readVocabulary(job, file.vocabularySize(),
                     made.isForOllama() ? made.fileName : ""));
  if (made.isForOllama() && !made.vocabulary.isThere)
    return Status::invalid("--to ollama: '{}' and its base have no tokenizer, "
                           "which ollama needs. Fix: --to gguf",
                           job.run);
  for (const std::string &warning : made.vocabulary.warnings)
    made.notes.push_back(warning);
  made.printPlan(model, file);
  return made;
}

void GgufJob::printPlan(const MergedModel &model,
                        const GgufExport &file) const {
  const auto adapted =
      std::ranges::count_if(model.tensors(), &MergedTensor::isAdapted);
  uint64_t values = 0;
  for (const MergedTensor &tensor : model.tensors())
    values += static_cast<uint64_t>(tensor.elementCount());
  const uint64_t measured =
      job.own.boolean("verify") ? values * sizeof(float) : 0;
  fmt::print("base     {}\n"
             "adapter  {}: changes {} of {} tensors\n"
             "merge    {}\n"
             "write    {} in {} to {}\n"
             "memory   {} for weights (largest tensor: {})\n"
             "disk     {}\n",
             job.baseName, shownPath(job.run), adapted,
             model.tensors().size(), planOf(choices),
             formatBytes(file.bytes()), type,
             shownPath(job.output + "/" + fileName),
             formatBytes(file.peakBytes(model)),
             formatBytes(model.largestBytes()),
             formatBytes(file.bytes() * choices.size() + measured));
  std::fflush(stdout); // before the notes of other tools
}

Status GgufJob::write(const MergedModel &model, BaseChoice choice,
                      const std::string &folder) {
  QLORA_ASSIGN_OR_RETURN(GgufExport file, GgufExport::plan(job, model, *mix));
  QLORA_RETURN_IF_ERROR(checkFreeSpace(folder, file.bytes()));
  GgufMetadata keys = {{"general.type", std::string("model")},
                       {"general.name", title}};
  keys.insert(keys.end(), vocabulary.keys.begin(), vocabulary.keys.end());
  QLORA_RETURN_IF_ERROR(file.write(model, keys, folder + "/" + fileName));
  files.insert_or_assign(choice, std::move(file));
  return Status::ok();
}

/// Measures the values that the file has, with a temporary copy in float32.
StatusOr<double> GgufJob::measure(LossMeter &meter, const MergedModel &model,
                                  BaseChoice choice,
                                  const std::string &folder) const {
  QLORA_ASSIGN_OR_RETURN(const ScratchFolder copy,
                         ScratchFolder::create("float32", folder));
  QLORA_RETURN_IF_ERROR(files.at(choice).writeFolder(model, copy.file("")));
  return meter.ofModel(copy.file(""));
}

CandidateForm GgufJob::form() {
  CandidateForm form;
  form.type = type;
  form.isQuantized = ggufTypeInfo(mix->type).blockValues > 1;
  form.cause = fmt::format("{} of the merged weights to {}",
                           form.isQuantized ? "quantization" : "rounding",
                           type);
  form.write = [this](const MergedModel &model, BaseChoice choice,
                      const std::string &folder) {
    return write(model, choice, folder);
  };
  form.measure = [this](LossMeter &meter, const MergedModel &model,
                        BaseChoice choice, const std::string &folder) {
    return measure(meter, model, choice, folder);
  };
  return form;
}

StatusOr<ReaderResult> GgufJob::readBackOf(const Candidate &best,
                                           const LossMeter &meter) const {
  const std::string path = best.folder.path() + "/" + fileName;
  QLORA_ASSIGN_OR_RETURN(const GgufValues values,
                         files.at(best.choice).values());
  QLORA_ASSIGN_OR_RETURN(const auto digests, values.digests());
  QLORA_ASSIGN_OR_RETURN(const std::string flag,
                         writeDigests(meter, digests));
  return readBack(job, meter, "gguf", path, {flag});
}

std::string GgufJob::usage() const {
  if (isForOllama())
    return fmt::format("```sh\nollama create {0} -f Modelfile\nollama run "
                       "{0}\n```\n",
                       title);
  const std::string name = dumpJson(nlohmann::ordered_json(fileName));
  return fmt::format(
      "```sh\nllama-cli -m {0}\n```\n\nor with llama-cpp-python:\n\n"
      "```python\nfrom llama_cpp import Llama\n\nmodel = Llama({0})\n"
      "answer = model.create_chat_completion(\n"
      "    [{{\"role\": \"user\", \"content\": \"Hello\"}}])\n```\n",
      name);
}

Status GgufJob::writeTexts(const std::string &folder,
                           const ExportReport &report,
                           const std::string &sentence) const {
  if (isForOllama())
    QLORA_RETURN_IF_ERROR(
        replaceWholeFile(folder + "/Modelfile", vocabulary.modelfile));
  QLORA_RETURN_IF_ERROR(report.write(folder));
  return replaceWholeFile(
      folder + "/README.md",
      modelCard(report, {title, "gguf", usage(), sentence}));
}

Status GgufJob::run() {
  ExportReport report = startReport(job, notes);
  QLORA_ASSIGN_OR_RETURN(std::optional<LossMeter> meter,
                         startMeter(job, report));
  std::string sentence;
  QLORA_ASSIGN_OR_RETURN(Candidate best,
                         writeBest(job, meter, {form()}, report, sentence));
  if (meter) {
    QLORA_ASSIGN_OR_RETURN(report.artefacts.front().reader,
                           readBackOf(best, *meter));
    report.artefacts.front().reader.cause = cause;
  }
  QLORA_RETURN_IF_ERROR(writeTexts(best.folder.path(), report, sentence));
  QLORA_RETURN_IF_ERROR(best.folder.commit());
  printReport(job, report);
  return Status::ok();
}

Status exportGguf(const ExportJob &job) {
  QLORA_ASSIGN_OR_RETURN(GgufJob gguf, GgufJob::plan(job));
  return job.own.boolean("dry_run") ? Status::ok() : gguf.run();
}

} // namespace qlora
