// SPDX-License-Identifier: MIT

// Reads adapter_config.json of the adapter from which a training starts.

#include "tools/qlora/StartAdapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Options/AdapterTargets.h"
#include "runtime/Options/OptionValue.h"
#include "tools/qlora/GenerationSource.h"

namespace qlora {

static constexpr const char *kTargetOption = "lora_target_modules";

/// Returns the modules of the A matrices in an adapter's weights file.
static StatusOr<std::vector<std::string>>
adaptedModulesIn(const std::string &folder) {
  QLORA_ASSIGN_OR_RETURN(const SafetensorsFile file,
                         SafetensorsFile::open(folder + "/" + kAdapterWeights));
  std::vector<std::string> modules;
  for (const SafetensorsTensor &tensor : file.tensors()) {
    const size_t end = std::min(tensor.name.find(".lora_A."),
                                tensor.name.find(".lora_embedding_A"));
    if (end != std::string::npos && tensor.name.starts_with(kPeftPrefix))
      modules.push_back(
          tensor.name.substr(kPeftPrefix.size(), end - kPeftPrefix.size()));
  }
  return modules;
}

/// Refuses given target modules that are not the adapter's own. Cannot compare
/// all-linear, whose modules depend on the model, nor adapters of parameters.
static Status checkTargetsOf(const OptionSetting &theirs,
                             const std::string &folder,
                             const Options &options) {
  Targets targets;
  std::string error;
  if (!options.value("target_parameters").empty() ||
      !targets.parse(dumpJson(options.value(kTargetOption)), error) ||
      targets.isAllLinear())
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(const auto modules, adaptedModulesIn(folder));
  const auto isUsed = [&](const std::string &target) {
    return std::ranges::any_of(modules, [&](const std::string &module) {
      return module == target || module.ends_with("." + target);
    });
  };
  const auto matches = [&](const std::string &module) {
    return targets.matches(module);
  };
  if (std::ranges::all_of(modules, matches) &&
      std::ranges::all_of(targets.getNames(), isUsed))
    return Status::ok();
  return Status::invalid(
      "{} is {}, but {} is {}. Fix: remove {}", theirs.written, theirs.text,
      options.spelling(kTargetOption), dumpJson(options.value(kTargetOption)),
      options.spelling(kTargetOption));
}

StatusOr<std::string> addStartOptions(Options &options) {
  const std::string folder = options.text("adapter_name_or_path");
  // A resumed run may have lost the folder: its checkpoint has the adapter.
  const bool isLost = !options.text("resume_from_checkpoint").empty() &&
                      !hasFile(folder, "adapter_config.json");
  if (folder.empty() || isLost || options.text("finetuning_type") == "full")
    return std::string();
  QLORA_ASSIGN_OR_RETURN(const auto settings, adapterSettings(folder));
  std::vector<std::string> taken;
  for (const OptionSetting &setting : settings) {
    const std::string_view name = setting.row->name;
    QLORA_ASSIGN_OR_RETURN(const auto value,
                           parseOptionText(*setting.row, setting.text));
    // An option that is set to its default would compile another program.
    if (name == "model_name_or_path" || value == options.value(name))
      continue;
    if (name == kTargetOption && options.isGiven(name))
      QLORA_RETURN_IF_ERROR(checkTargetsOf(setting, folder, options));
    if (options.isGiven(name)) // checkRun compares the other options
      continue;
    QLORA_RETURN_IF_ERROR(options.applySettings({&setting, 1}));
    taken.push_back(fmt::format("{} {}", name, setting.text));
  }
  if (taken.empty())
    return std::string();
  return fmt::format("from '{}/adapter_config.json': {}", shownPath(folder),
                     fmt::join(taken, ", "));
}

} // namespace qlora
