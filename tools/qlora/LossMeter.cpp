// SPDX-License-Identifier: MIT

// Chooses data and options, and reads the result from metrics.jsonl.

#include "tools/qlora/LossMeter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "runtime/Base/HubReference.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Options/AdapterOptions.h"
#include "runtime/Watch/RunFolder.h"
#include "tools/qlora/OptionSettings.h"
#include "tools/qlora/Programs.h"
#include "tools/qlora/Tools.h"

namespace qlora {

namespace fs = std::filesystem;

/// Bytes of training data that are evaluated if there are no other data.
static constexpr double kTrainingBytes = 1 << 20;

/// Rows that are evaluated instead if the data are on the hub.
static constexpr int64_t kTrainingRows = 1000;

/// Options of the training that decide the loss of a row, with those of the
/// group Data.
static constexpr const char *kLossOptions[] = {
    "max_length", "per_device_train_batch_size", "per_device_eval_batch_size",
    "seed"};

/// Options that choose the modules with an adapter.
static constexpr const char *kTargetOptions[] = {
    "lora_target_modules", "exclude_modules", "layers_to_transform",
    "layers_pattern"};

static void copyPaths(const Options &from, const char *option, const char *as,
                      std::vector<OptionSetting> &to) {
  for (const auto &[path, weight] : from.paths(option))
    to.push_back(settingOf(
        as, weight == 1 ? path : fmt::format("{}:{}", path, weight)));
}

static std::string namesOf(const Options &options, const char *option) {
  std::string names;
  for (const auto &[path, weight] : options.paths(option))
    names += (names.empty() ? "" : ", ") + dataTitle(path);
  return names;
}

/// Returns the bytes of a file, or of all files in a folder.
static double bytesOf(const std::string &path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored))
    return static_cast<double>(fs::file_size(path, ignored));
  double bytes = 0;
  for (const auto &entry : fs::recursive_directory_iterator(path, ignored))
    if (entry.is_regular_file(ignored))
      bytes += static_cast<double>(entry.file_size(ignored));
  return bytes;
}

//===----------------------------------------------------------------------===//
// Data
//===----------------------------------------------------------------------===//

StatusOr<LossMeter> LossMeter::create(const ExportJob &job, bool needsData) {
  QLORA_ASSIGN_OR_RETURN(ScratchFolder scratch,
                         ScratchFolder::create("export"));
  LossMeter meter(job, std::move(scratch));
  if (needsData)
    QLORA_RETURN_IF_ERROR(meter.findData());
  return meter;
}

/// Uses the first training rows.
void LossMeter::useFirstRows() {
  const Options &trained = job->trained;
  for (const auto &[path, weight] : trained.paths("train_file"))
    data.push_back(settingOf("validation_file", path));
  const int64_t all = trained.integer("max_samples");
  const int64_t rows = all ? std::min(all, kTrainingRows) : kTrainingRows;
  data.push_back(settingOf("max_samples", fmt::to_string(rows)));
  usesTraining = true;
  name = fmt::format("the first {} rows of {}", rows,
                     namesOf(trained, "train_file"));
}

/// Uses training rows: all of small data, else a fraction.
Status LossMeter::useTrainingRows() {
  const Options &trained = job->trained;
  const auto paths = trained.paths("train_file");
  if (std::ranges::any_of(paths, [](const WeightedPath &data) {
        return isHubReference(data.path);
      }))
    return useFirstRows(), Status::ok();
  double bytes = 0;
  for (const auto &[path, weight] : paths) {
    if (!isThere(path))
      return Status::invalid("the data to measure losses on, '{}', does not "
                             "exist. Fix: --validation-file FILE, or "
                             "--no-verify",
                             path);
    bytes += bytesOf(path);
  }
  if (bytes == 0)
    return Status::invalid("'{}' names no data to measure losses on. Fix: "
                           "--validation-file FILE, or --no-verify",
                           job->run);
  usesTraining = true;
  name = namesOf(trained, "train_file");
  if (bytes <= kTrainingBytes) {
    for (const auto &[path, weight] : trained.paths("train_file"))
      data.push_back(settingOf("validation_file", path));
    return Status::ok();
  }
  copyPaths(trained, "train_file", "train_file", data);
  const double fraction = kTrainingBytes / bytes;
  data.push_back(settingOf("val_set_size", fmt::format("{:.6f}", fraction)));
  name = fmt::format("{:.2g} % of {}", 100 * fraction, name);
  return Status::ok();
}

Status LossMeter::findData() {
  const Options &trained = job->trained;
  const std::string rl = trained.text("rl");
  if (rl != "none" && job->own.text("validation_file").empty())
    return Status::invalid("the run's data are for --rl {}, whose loss a model "
                           "alone does not have. Fix: --validation-file FILE "
                           "with prompts and completions, or --no-verify",
                           rl);
  if (const std::string file = job->own.text("validation_file");
      !file.empty()) {
    if (!isThere(file))
      return Status::notFound("--validation-file: there is no file '{}'", file);
    data = {settingOf("validation_file", file)};
    name = fs::path(file).filename().string();
    return Status::ok();
  }
  if (!trained.paths("validation_file").empty()) {
    copyPaths(trained, "validation_file", "validation_file", data);
    name = namesOf(trained, "validation_file");
  } else if (trained.number("val_set_size") > 0) {
    copyPaths(trained, "train_file", "train_file", data);
    copySetting(trained, *findOption(optionTable(), "val_set_size"), data);
    name = "held-out rows of " + namesOf(trained, "train_file");
  } else {
    return useTrainingRows();
  }
  for (const OptionSetting &setting : data)
    if (setting.row->type == OptionType::kPaths &&
        !isHubReference(setting.text) && !isThere(setting.text))
      return Status::invalid("the run's data '{}' do not exist. Fix: "
                             "--validation-file FILE, or --no-verify",
                             setting.text);
  return Status::ok();
}

//===----------------------------------------------------------------------===//
// Evaluation
//===----------------------------------------------------------------------===//

StatusOr<Configuration>
LossMeter::configurationOf(std::vector<OptionSetting> settings) const {
  for (const OptionRow &row : groupOf(optionTable(), "Data"))
    if (row.name != std::string_view("val_set_size"))
      copySetting(job->trained, row, settings);
  for (const char *option : kLossOptions)
    copySetting(job->trained, *findOption(optionTable(), option), settings);
  std::ranges::copy(data, std::back_inserter(settings));
  settings.push_back(settingOf("num_train_epochs", "0"));
  settings.push_back(settingOf("compute_dtype", "float32"));
  CommandLine line;
  line.settings = std::move(settings);
  return configure(line, "", "", ProgramUse::kTrain);
}

/// Returns the settings of the training's program.
std::vector<OptionSetting> LossMeter::trainedSettings() const {
  std::vector<OptionSetting> settings = {
      settingOf("model_name_or_path", job->trainedBase)};
  for (const char *group : {"LoRA", "Quantization"})
    for (const OptionRow &row : groupOf(optionTable(), group))
      copySetting(job->trained, row, settings);
  // These change training, but no loss of the trained adapter.
  std::erase_if(settings, [](const OptionSetting &setting) {
    const std::string_view option = setting.row->name;
    return option == "init_lora_weights" || option == "loftq_config" ||
           option == "lora_dropout" || option == "neftune_noise_alpha" ||
           option == "loraplus_lr_ratio" || option == "compute_dtype" ||
           option == "activation_dtype_for_lora";
  });
  return settings;
}

/// Makes the program, and returns its path.
static StatusOr<std::string> programOf(const Configuration &configuration) {
  QLORA_ASSIGN_OR_RETURN(ProgramCommands made, programCommands(configuration));
  QLORA_RETURN_IF_ERROR(makeProgram(made));
  return std::move(made.program);
}

StatusOr<std::string> LossMeter::trainedProgram() {
  QLORA_ASSIGN_OR_RETURN(const Configuration configuration,
                         configurationOf(trainedSettings()));
  return programOf(configuration);
}

/// Counts the lines of a file.
static StatusOr<int64_t> countLines(const std::string &path) {
  QLORA_ASSIGN_OR_RETURN(const std::string text, readWholeFile(path));
  return std::ranges::count(text, '\n');
}

/// Returns the loss of an evaluation, without the loss of routers, which
/// readers do not add.
static double lossOf(const nlohmann::json &evaluation) {
  return std::log(numberOf(evaluation, "eval_perplexity"));
}

StatusOr<double> LossMeter::evaluate(std::vector<OptionSetting> settings) {
  QLORA_ASSIGN_OR_RETURN(const Configuration configuration,
                         configurationOf(std::move(settings)));
  QLORA_ASSIGN_OR_RETURN(std::string program, programOf(configuration));
  const std::string folder = scratch.file(fmt::to_string(measured++));
  ToolCommand run{"qlora-run", {std::move(program)}};
  std::ranges::copy(configuration.runnerFlags,
                    std::back_inserter(run.arguments));
  run.arguments.push_back("--output-dir=" + folder);
  if (rows == 0)
    run.arguments.push_back("--evaluation-rows=" + rowsFile());
  QLORA_RETURN_IF_ERROR(runTool(run, ToolVerbosity::kErrors));
  if (rows == 0) {
    QLORA_ASSIGN_OR_RETURN(rows, countLines(rowsFile()));
  }
  QLORA_ASSIGN_OR_RETURN(const std::string text,
                         readWholeFile(folder + "/metrics.jsonl"));
  const LoggedLines lines(text);
  if (lines.evaluations.empty())
    return Status::error(StatusCode::kInternal,
                         "qlora-run logged no evaluation in '{}'", folder);
  const double loss = lossOf(lines.evaluations.back());
  if (!std::isfinite(loss))
    return Status::invalid("the loss on {} is not finite. Fix: use an earlier "
                           "checkpoint, or other data with --validation-file",
                           name);
  return loss;
}

StatusOr<std::optional<double>> LossMeter::logged(bool first) const {
  auto text = readWholeFile(job->logFolder + "/metrics.jsonl");
  if (!text.isOk() || job->own.isGiven("validation_file") || usesTraining)
    return std::optional<double>();
  const LoggedLines lines(*text);
  if (lines.evaluations.empty())
    return std::optional<double>();
  return std::optional(
      lossOf(first ? lines.evaluations.front() : lines.evaluations.back()));
}

StatusOr<std::optional<double>> LossMeter::ofBase() {
  if (leavesResidual(job->trained.text("init_lora_weights")))
    return logged(/*first=*/true);
  QLORA_ASSIGN_OR_RETURN(const double loss, evaluate(trainedSettings()));
  return std::optional(loss);
}

StatusOr<std::optional<double>> LossMeter::ofTrained() {
  if (leavesResidual(job->trained.text("init_lora_weights")))
    return logged(/*first=*/false);
  std::vector<OptionSetting> settings = trainedSettings();
  settings.push_back(
      settingOf("adapter_name_or_path", absolutePath(job->run)));
  QLORA_ASSIGN_OR_RETURN(const double loss, evaluate(std::move(settings)));
  return std::optional(loss);
}

Status LossMeter::makeRows() {
  return rows ? Status::ok() : ofModel(job->trainedBase).status();
}

StatusOr<double> LossMeter::ofModel(const std::string &folder) {
  std::vector<OptionSetting> settings = {
      settingOf("model_name_or_path", absolutePath(folder)),
      settingOf("lora_r", "1"), settingOf("lora_alpha", "1")};
  for (const char *option : kTargetOptions)
    copySetting(job->trained, *findOption(optionTable(), option), settings);
  return evaluate(std::move(settings));
}

} // namespace qlora
