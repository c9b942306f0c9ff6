// SPDX-License-Identifier: MIT

// Merges the option layers, then passes each option to the tools in its scope.

#include "tools/qlora/Configuration.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Options/DeviceMap.h"
#include "runtime/Options/OptionValue.h"
#include "tools/qlora-import/ImporterOptions.h"
#include "tools/qlora-run/RunnerOptions.h"
#include "tools/qlora/AnswerSettings.h"
#include "tools/qlora/ForeignConfigKeys.h"
#include "tools/qlora/ForeignTools.h"
#include "tools/qlora/HubCache.h"
#include "tools/qlora/HubData.h"
#include "tools/qlora/MachineFlags.h"
#include "tools/qlora/OptionSettings.h"
#include "tools/qlora/StartAdapter.h"
#include "tools/qloracc/CompilerOptions.h"

namespace qlora {

static std::vector<OptionRow>
rowsWithout(std::span<const OptionRow> rows,
            std::initializer_list<std::string_view> names) {
  std::vector<OptionRow> kept;
  for (const OptionRow &row : rows)
    if (std::ranges::find(names, row.name) == names.end())
      kept.push_back(row);
  return kept;
}

std::span<const OptionRow> importerRows() {
  static const auto rows = rowsWithout(kImporterOptions, {"output"});
  return rows;
}

std::span<const OptionRow> compilerRows() {
  static const auto rows =
      rowsWithout(kCompilerOptions, {"config", "output", "emit", "verbose"});
  return rows;
}

/// Omits options that are also in compilerRows(), and `--generate`,
/// `--adapter` and `--report`, because `qlora` has commands for them.
std::span<const OptionRow> runnerRows() {
  static const auto rows =
      rowsWithout(kRunnerOptions, {"config", "device_profile", "gpus_per_node",
                                   "network", "report", "force_single_gpu",
                                   "generate", "adapter"});
  return rows;
}

static bool isAmong(const OptionRow *row, std::span<const OptionRow> rows) {
  return row >= rows.data() && row < rows.data() + rows.size();
}

/// Returns one flag, or for input paths one flag per path.
static std::vector<std::string> flagsOf(const OptionRow &row,
                                        const Options &options) {
  if (row.type != OptionType::kPaths)
    return {flagOf(row, options.value(row.name))};
  std::vector<std::string> flags;
  for (const auto &[path, weight] : options.paths(row.name))
    flags.push_back(fmt::format("{}={}", flagSpelling(row.name), path) +
                    (weight == 1 ? "" : fmt::format(":{}", weight)));
  return flags;
}

bool isYamlFile(const std::string &word) {
  const std::string kind = std::filesystem::path(word).extension();
  return kind == ".yaml" || kind == ".yml";
}

/// Interprets the arguments that are not options as model, program and data.
static Status takeInputs(const CommandLine &line, std::string &config,
                         std::string &program,
                         std::vector<OptionSetting> &settings) {
  std::vector<std::string> words = line.rest;
  if (words.size() > 2)
    return Status::invalid(
        "expects a model and data, but got '{}' too; remove it", words[2]);
  const auto add = [&](const char *name, const std::string &path) {
    settings.push_back({findOption(optionTable(), name), path, path});
  };
  if (!words.empty()) {
    const bool isYaml = isYamlFile(words[0]);
    if (isYaml && !config.empty())
      return Status::invalid(
          "takes one configuration, but got '{}' and '{}'; remove one", config,
          words[0]);
    if (isYaml)
      config = words[0];
    else if (std::filesystem::path(words[0]).extension() == ".so")
      program = words[0];
    else
      add("model_name_or_path", words[0]);
  }
  if (words.size() == 2)
    add("train_file", words[1]);
  return Status::ok();
}

/// Passes run options to the compiler or the runner, according to their scopes.
static void addRunFlags(Configuration &result) {
  const bool findsBatch = result.options.boolean("auto_find_batch_size");
  for (const OptionRow &row : optionTable()) {
    const std::string_view name = row.name;
    if (!result.options.isGiven(name))
      continue;
    const auto flags = flagsOf(row, result.options);
    // If the user gave a program, qlora-run gets all flags and compares them
    // with the program.
    const bool decidesProgram = row.scope == OptionScope::kProgram;
    if (!decidesProgram || !result.program.empty())
      std::ranges::copy(flags, std::back_inserter(result.runnerFlags));
    // These run options also go to the compiler. It chooses sequence lengths
    // from the training file, and the batch size from the rows per step.
    const bool decidesBatch =
        findsBatch && (name == "global_batch_size" ||
                       name == "gradient_accumulation_steps");
    if (decidesProgram || decidesBatch || name == "train_file" ||
        name == "step_packing")
      std::ranges::copy(flags, std::back_inserter(result.compilerFlags));
  }
  result.alwaysCompiles |=
      result.options.value("memory_limit") == kAutoSize ||
      (findsBatch && !result.options.isGiven("memory_limit"));
}

/// Adds the flags of the tools' own options.
static Status addToolFlags(const CommandLine &line, Configuration &result) {
  for (const OptionSetting &setting : line.settings) {
    const OptionRow &row = *setting.row;
    const std::string_view name = row.name;
    auto value = parseOptionText(row, setting.text);
    if (!value.isOk())
      return value.status().withContext(setting.written);
    const std::string flag = flagOf(row, value.value());
    if (isAmong(&row, importerRows())) {
      result.importerFlags.push_back(flag);
      result.modelKeys[row.name] = value.value();
    } else if (isAmong(&row, compilerRows())) {
      if (name == "gpus_per_node" || name == "network" || name == "target" ||
          name == "cuda_arch")
        continue; // addMachineFlags
      result.compilerFlags.push_back(flag);
      result.alwaysCompiles |=
          name == "plan_report" || name == "dump_phases" || name == "remarks";
      if (name == "device_profile")
        result.deviceProfile = value->get<std::string>();
      if (name == "device_map")
        result.deviceMap = value->get<std::string>();
      if (name == "device_profile" || name == "force_single_gpu")
        result.runnerFlags.push_back(flag);
    } else if (isAmong(&row, runnerRows())) {
      result.runnerFlags.push_back(flag);
    }
  }
  return Status::ok();
}

/// Adds the importer's flags of a file, which flags replace.
static void addModelKeys(const ForeignFile &file, Configuration &result) {
  for (const auto &[name, value] : file.modelKeys.items())
    if (!result.modelKeys.contains(name)) {
      result.importerFlags.push_back(
          flagOf(*findOption(importerRows(), name), value));
      result.modelKeys[name] = value;
    }
}

/// Returns the model as the user wrote it, for example a hub name. In the
/// options, model_name_or_path is already a path.
static std::string writtenModel(std::span<const OptionSetting> settings,
                                std::span<const YamlEntry> entries) {
  const OptionRow *row = findOption(optionTable(), "model_name_or_path");
  std::string word;
  for (const YamlEntry &entry : entries)
    if (findOption(optionTable(), entry.key) == row && entry.value.is_string())
      word = entry.value.get<std::string>();
  for (const OptionSetting &setting : settings)
    if (setting.row == row)
      word = setting.text;
  return word;
}

/// Removes TRL's and axolotl's keys for the hub's revision from the entries.
/// Sets `revision` to their value if no flag has set it.
static void takeRevision(std::vector<YamlEntry> &entries,
                         std::string &revision) {
  std::erase_if(entries, [&](const YamlEntry &entry) {
    if (entry.key != "model_revision" && entry.key != "revision_of_model")
      return false;
    // The tools' default is main, also for a local folder.
    if (revision.empty() && entry.value.is_string() && entry.value != "main")
      revision = entry.value.get<std::string>();
    return true;
  });
}

static Status findModel(const std::string &word, const std::string &revision,
                        Options &options) {
  std::error_code ignored;
  const std::string path = options.text("model_name_or_path");
  const auto name = parseHubName(word, revision);
  if (!name || std::filesystem::exists(path, ignored)) {
    if (revision.empty() || path.empty())
      return Status::ok();
    return Status::invalid("model_revision needs a model on the Hugging Face "
                           "hub, but '{}' is a local path; remove it",
                           word);
  }
  QLORA_ASSIGN_OR_RETURN(const std::string folder, hubModelFolder(*name));
  QLORA_RETURN_IF_ERROR(
      options.applySetting("model_name_or_path", folder, folder));
  // Other machines find the adapter's base model by its hub name.
  return options.text("adapter_base_name").empty()
             ? options.applySetting("adapter_base_name", name->id, name->id)
             : Status::ok();
}

/// Sets PEFT's default targets, which depend on the model_type in config.json.
static Status addPeftTargets(Options &options) {
  const std::string config =
      options.text("model_name_or_path") + "/config.json";
  QLORA_ASSIGN_OR_RETURN(const std::string text, readWholeFile(config));
  const auto object =
      nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  const std::string type =
      object.is_object() ? object.value("model_type", "") : "";
  QLORA_ASSIGN_OR_RETURN(const nlohmann::ordered_json targets,
                         peftTargets(type));
  const std::string flag = dumpJson(targets);
  return options.applySetting("lora_target_modules", flag, flag);
}

/// Sets --parallel to none if --force-single-gpu is given.
static Status forceSingleGpu(const CommandLine &line, Options &options) {
  Options compiler(compilerRows());
  QLORA_RETURN_IF_ERROR(compiler.applySettings(line.settings));
  if (!compiler.boolean("force_single_gpu"))
    return Status::ok();
  QLORA_RETURN_IF_ERROR(checkForcedSingle(options));
  return options.applySetting("parallel", "none", "--force-single-gpu");
}

/// Leaves out the offloading of another tool's file for a CPU, which has one
/// memory.
static void dropOffload(const ForeignFile &file,
                        std::span<const OptionSetting> settings,
                        Configuration &result) {
  const auto isOffload = [](const OptionSetting &setting) {
    return setting.row->name == std::string_view("offload");
  };
  if (!file.hasOffload || result.target != "cpu" ||
      std::ranges::any_of(settings, isOffload))
    return;
  for (auto *flags : {&result.compilerFlags, &result.runnerFlags})
    std::erase_if(*flags, [](const std::string &flag) {
      return flag.starts_with("--offload=");
    });
  result.notes.push_back("offloading is left out: a CPU has one memory");
}

StatusOr<Configuration> configure(const CommandLine &line,
                                  const std::string &configFile,
                                  const std::string &modelRevision,
                                  ProgramUse use) {
  Configuration result;
  std::string config = configFile, revision = modelRevision;
  std::vector<OptionSetting> settings = line.settings;
  QLORA_RETURN_IF_ERROR(takeInputs(line, config, result.program, settings));
  QLORA_ASSIGN_OR_RETURN(const Machines machines, Machines::of(line));
  ForeignFile file;
  HubDataKeys hubData = HubDataKeys::of(settings);
  const std::string folder =
      std::filesystem::path(config).parent_path().string();
  if (!config.empty()) {
    QLORA_ASSIGN_OR_RETURN(auto written, readYamlMap(config));
    takeRevision(written, revision);
    hubData = HubDataKeys::of(settings, written);
    const ForeignRequest request{
        written, config, settings, {machines.ranks, machines.localRanks}};
    file = translateForeignConfigKeys(request);
    if (result.program.empty())
      addModelProblems(request, revision, file);
    QLORA_RETURN_IF_ERROR(addHubEntries(hubData, folder, file.entries));
    QLORA_RETURN_IF_ERROR(result.options.applyEntries(
        file.entries, config, std::move(file.problems)));
    result.notes = file.notes;
  }
  QLORA_RETURN_IF_ERROR(addHubSettings(hubData, settings));
  QLORA_RETURN_IF_ERROR(result.options.applySettings(settings));
  if (result.program.empty()) {
    QLORA_ASSIGN_OR_RETURN(std::string text, addStartOptions(result.options));
    result.notes.push_back(std::move(text));
  }
  QLORA_RETURN_IF_ERROR(forceSingleGpu(line, result.options));
  QLORA_RETURN_IF_ERROR(result.options.validate());
  QLORA_RETURN_IF_ERROR(findModel(writtenModel(settings, file.entries),
                                  revision, result.options));
  QLORA_RETURN_IF_ERROR(
      findHubData(line.settings, hubData, folder, result.options));
  if (result.program.empty())
    QLORA_RETURN_IF_ERROR(checkSpecialTokens(
        file.specialTokens, config, result.options.text("model_name_or_path")));
  if (file.hasPeftTargets && result.program.empty() &&
      !result.options.isGiven("lora_target_modules"))
    QLORA_RETURN_IF_ERROR(addPeftTargets(result.options));
  if (result.program.empty())
    QLORA_RETURN_IF_ERROR(chooseLayers(file, result.options));
  if (result.program.empty())
    QLORA_RETURN_IF_ERROR(leaveOutExperts(file, result.options, result.notes));
  if (result.program.empty())
    QLORA_RETURN_IF_ERROR(addAnswerSettings(result.options));
  addRunFlags(result);
  QLORA_RETURN_IF_ERROR(addToolFlags(line, result));
  addModelKeys(file, result);
  QLORA_RETURN_IF_ERROR(addMachineFlags(machines, use, result));
  dropOffload(file, settings, result);
  return result;
}

} // namespace qlora
