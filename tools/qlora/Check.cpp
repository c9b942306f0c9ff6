// SPDX-License-Identifier: MIT

// Finds the facts of the named run, adapter, configuration or model, and prints
// which rules of each target apply.

#include "tools/qlora/Check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Watch/RunFolder.h"
#include "tools/qlora/Configuration.h"
#include "tools/qlora/ExportFacts.h"
#include "tools/qlora/GenerationSource.h"
#include "tools/qlora/HubCache.h"
#include "tools/qlora/TargetRules.h"
#include "tools/qlora/Tools.h"
#include "tools/qlora/Train.h"

namespace qlora {

static const OptionRow kCheckOptions[] = {
    {"for", OptionType::kNames, "[peft, vllm, llama.cpp, ollama]", kRun,
     "Check", "programs that must load the adapter or the model: peft, vllm, "
     "llama.cpp, ollama"},
};

const Tool &checkTool() {
  static const Tool tool = [] {
    Tool result = trainTool();
    result.usage =
        "usage: qlora check RUN_DIR|ADAPTER_DIR [--for TARGET,...]\n"
        "       qlora check CONFIG.yaml|MODEL [--for TARGET,...] [train "
        "options]\n"
        "\n"
        "Prints whether peft, vllm, llama.cpp and ollama can load an adapter "
        "or a model,\n"
        "why not, and what to do instead. With a configuration or a model it "
        "checks what\n"
        "a training with these options would write. Exits with 1 if a target "
        "does not\n"
        "fit.\n";
    result.common = {"for", "config", "lora_r", "use_dora", "use_rslora",
                     "modules_to_save", "lora_target_modules",
                     "finetuning_type"};
    result.example = "  qlora check out/adapter --for vllm,llama.cpp\n"
                     "  qlora check train.yaml --for vllm\n";
    result.sections.insert(result.sections.begin(), {kCheckOptions, {kRun},
                                                     ""});
    result.tables.insert(result.tables.begin(), kCheckOptions);
    return result;
  }();
  return tool;
}

/// Returns the base of an adapter: that of its run if it is still there, else
/// the one in adapter_config.json.
static StatusOr<std::string> baseOf(const std::string &folder) {
  std::error_code ignored;
  if (hasFile(folder, kSettingsFile)) {
    Options options;
    QLORA_RETURN_IF_ERROR(options.applyYaml(folder + "/" + kSettingsFile));
    const std::string model = options.text("model_name_or_path");
    if (std::filesystem::exists(model, ignored))
      return model;
  }
  QLORA_ASSIGN_OR_RETURN(const auto settings, adapterSettings(folder));
  Options options;
  QLORA_RETURN_IF_ERROR(options.applySettings(settings));
  const std::string model = options.text("model_name_or_path");
  if (model.empty())
    return Status::invalid("'{}' names no base model. Fix: write it as "
                           "base_model_name_or_path into adapter_config.json",
                           folder);
  return modelFolder(model);
}

/// Refuses options of a training for a folder that has its own.
static Status refuseOptions(const CommandLine &line) {
  for (const OptionSetting &setting : line.settings)
    if (findOption(kCheckOptions, setting.row->name) != setting.row)
      return Status::invalid("{} conflicts with '{}', which is already "
                             "trained. Fix: remove it",
                             setting.written, line.rest[0]);
  return Status::ok();
}

static StatusOr<ExportFacts> factsOfConfiguration(const CommandLine &line) {
  Options ofTrain{trainTool().tables.front()};
  QLORA_RETURN_IF_ERROR(ofTrain.applySettings(line.settings));
  QLORA_ASSIGN_OR_RETURN(
      const Configuration configuration,
      configure(line, ofTrain.text("config"), ofTrain.text("model_revision"),
                ProgramUse::kPlan));
  const Options &options = configuration.options;
  const std::string model = options.text("model_name_or_path");
  if (model.empty() || !configuration.program.empty())
    return Status::invalid("no model is named. Fix: qlora check RUN_DIR, "
                           "CONFIG.yaml or MODEL");
  QLORA_ASSIGN_OR_RETURN(const ModelConfig config, readHfConfig(model, {}));
  return factsOfTraining(options, config);
}

static StatusOr<ExportFacts> findFacts(const CommandLine &line) {
  const std::string word = line.rest.empty() ? "" : line.rest[0];
  const bool isAdapter = hasFile(word, "adapter_config.json");
  if (!isAdapter && !hasFile(word, kSettingsFile))
    return factsOfConfiguration(line);
  QLORA_RETURN_IF_ERROR(refuseOptions(line));
  if (isAdapter) {
    QLORA_ASSIGN_OR_RETURN(const std::string base, baseOf(word));
    QLORA_ASSIGN_OR_RETURN(const ModelConfig config, readHfConfig(base, {}));
    return factsOfAdapter(word, config);
  }
  // A run that trained all weights, or one that has not ended.
  CommandLine ofRun;
  ofRun.rest = {word + "/" + kSettingsFile};
  return factsOfConfiguration(ofRun);
}

static void show(const std::string &target,
                 const std::vector<Finding> &findings) {
  static constexpr const char *kTexts[] = {"fits", "fits, with a note",
                                           "does not fit"};
  fmt::print("{:<11}{}\n", target,
             kTexts[static_cast<int>(worstFit(findings))]);
  for (const Finding &finding : findings)
    fmt::print("{:11}{}{}\n{:13}Fix: {}\n", "",
               finding.fit == Fit::kNote ? "note: " : "", finding.why, "",
               finding.todo);
}

Status check(std::span<const std::string> words) {
  QLORA_ASSIGN_OR_RETURN(const CommandLine line,
                         parseCommandLine(words, checkTool()));
  if (!line.answer.empty())
    return fmt::print("{}", line.answer), Status::ok();
  Options own{std::span<const OptionRow>(kCheckOptions)};
  QLORA_RETURN_IF_ERROR(own.applySettings(line.settings));
  std::vector<ExportTarget> targets;
  for (const std::string &name : own.names("for")) {
    QLORA_ASSIGN_OR_RETURN(const ExportTarget target, parseExportTarget(name));
    targets.push_back(target);
  }
  QLORA_ASSIGN_OR_RETURN(const ExportFacts facts, findFacts(line));
  std::vector<std::string> misfits;
  for (const ExportTarget target : targets) {
    const std::string &name =
        exportTargetNames()[static_cast<size_t>(target)];
    const std::vector<Finding> findings = findingsFor(target, facts);
    show(name, findings);
    if (worstFit(findings) == Fit::kNo)
      misfits.push_back(name);
  }
  if (misfits.empty())
    return Status::ok();
  return Status::invalid("does not fit: {}; see the table above",
                         fmt::join(misfits, ", "));
}

} // namespace qlora
