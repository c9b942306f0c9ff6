// SPDX-License-Identifier: MIT

// Reads adapter folders and the settings of their runs.

#include "tools/qlora/GenerationSource.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <set>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Watch/RunFolder.h"
#include "tools/qlora/OptionSettings.h"
#include "tools/qlora/Tools.h"

namespace qlora {

namespace fs = std::filesystem;

bool hasFile(const std::string &folder, const char *name) {
  std::error_code ignored;
  return !folder.empty() && fs::exists(fs::path(folder) / name, ignored);
}

/// Adds a run's model, if it is still there, its quantization, and its seed,
/// on which initial factors of the base depend.
static Status addRunSettings(const std::string &folder,
                             std::vector<OptionSetting> &settings) {
  Options options;
  QLORA_RETURN_IF_ERROR(options.applyYaml(folder + "/" + kSettingsFile));
  const std::string model = options.text("model_name_or_path");
  if (std::error_code ignored; fs::exists(model, ignored))
    settings.insert(settings.begin(), settingOf("model_name_or_path", model));
  settings.push_back(settingOf("seed", valueText(options.value("seed"))));
  for (const OptionRow &row : groupOf(optionTable(), "Quantization"))
    copySetting(options, row, settings);
  return Status::ok();
}

/// Refuses adapters of runs whose bases are quantized differently, because they
/// share one base here. Options that are `given` apply to all adapters.
static Status checkSameQuantization(std::span<const std::string> folders,
                                    std::span<const OptionSetting> given) {
  std::string first;
  Options options;
  for (const std::string &folder : folders) {
    if (!hasFile(folder, kSettingsFile))
      continue;
    Options own;
    QLORA_RETURN_IF_ERROR(own.applyYaml(folder + "/" + kSettingsFile));
    for (const OptionRow &row : groupOf(optionTable(), "Quantization"))
      if (!first.empty() && own.value(row.name) != options.value(row.name) &&
          std::ranges::find(given, std::string_view(row.name),
                            [](const OptionSetting &setting) {
                              return std::string_view(setting.row->name);
                            }) == given.end())
        return Status::invalid(
            "'{}' was trained with {} {}, but '{}' with {}. Fix: give {}, "
            "which then applies to the base of both",
            first, flagSpelling(row.name), valueText(options.value(row.name)),
            folder, valueText(own.value(row.name)), flagSpelling(row.name));
    if (first.empty()) {
      first = folder;
      options = std::move(own);
    }
  }
  return Status::ok();
}

/// Returns the options of adapters that rows choose. The rank is rounded up, so
/// that similar adapters share a program.
static std::vector<OptionSetting>
choiceSettings(std::span<const PlainAdapter> plain) {
  constexpr uint64_t kLeastRank = 8;
  uint64_t rank = kLeastRank;
  std::set<std::string> targets;
  for (const PlainAdapter &adapter : plain) {
    rank = std::max(rank, std::bit_ceil(static_cast<uint64_t>(adapter.rank)));
    targets.insert(adapter.targets.begin(), adapter.targets.end());
  }
  return {settingOf("max_loras", fmt::to_string(plain.size())),
          settingOf("max_lora_rank", fmt::to_string(rank)),
          settingOf("lora_target_modules",
                    dumpExact(nlohmann::ordered_json(targets)))};
}

/// Sets the defaults for the adapters: a program in which rows choose one, or
/// if the only adapter is no plain LoRA, a program for that adapter.
static Status addAdapterSettings(GenerationSource &source) {
  QLORA_ASSIGN_OR_RETURN(source.defaults, adapterSettings(source.adapter()));
  std::vector<PlainAdapter> plain;
  for (const NamedAdapter &adapter : source.adapters) {
    auto read = readPlainAdapter(adapter.folder);
    if (!read.isOk() && source.adapters.size() > 1)
      return read.status();
    if (!read.isOk())
      return Status::ok();
    plain.push_back(std::move(*read));
  }
  source.isChoice = true;
  std::erase_if(source.defaults, [](const OptionSetting &setting) {
    return setting.row->name != std::string_view("model_name_or_path");
  });
  std::ranges::move(choiceSettings(plain), std::back_inserter(source.defaults));
  return Status::ok();
}

/// Returns the base model that an adapter folder names; empty: none.
static StatusOr<std::string> baseOf(const std::string &adapter) {
  QLORA_ASSIGN_OR_RETURN(const auto settings, adapterSettings(adapter));
  for (const OptionSetting &setting : settings)
    if (setting.row->name == std::string_view("model_name_or_path"))
      return setting.text;
  return std::string();
}

/// Whether two names are likely to mean the same model: a folder, or a name on
/// the hub, which a local folder often has too.
static bool isSameModel(const std::string &a, const std::string &b) {
  const auto last = [](const std::string &name) {
    const fs::path path = fs::path(absolutePath(name)).lexically_normal();
    return path.has_filename() ? path.filename()
                               : path.parent_path().filename();
  };
  std::error_code ignored;
  return last(a) == last(b) || fs::equivalent(a, b, ignored);
}

/// Warns about adapters whose file names another base than `base`.
static Status warnOfOtherBases(const std::string &base,
                               std::span<const NamedAdapter> adapters) {
  for (const NamedAdapter &adapter : adapters) {
    QLORA_ASSIGN_OR_RETURN(const std::string own, baseOf(adapter.folder));
    if (!base.empty() && !own.empty() && !isSameModel(base, own))
      note(fmt::format("warning: '{}' was trained on '{}', but is used "
                       "with '{}'; unless these are the same model, answers "
                       "are wrong",
                       adapter.folder, own, base));
  }
  return Status::ok();
}

/// Sets the model, the adapters, and `run`, the run whose base is used, from
/// the first argument and the values of --adapter.
static Status resolveFolders(const std::string &word,
                             const std::vector<std::string> &adapters,
                             GenerationSource &source, std::string &run) {
  source.isBaseOnly =
      std::ranges::find(adapters, kNoAdapter) != adapters.end();
  if (source.isBaseOnly && adapters.size() > 1)
    return Status::invalid("--adapter none conflicts with other adapters. Fix: "
                           "remove it; a row with \"adapter\": null uses the "
                           "base alone");
  std::vector<std::string> named = adapters;
  if (source.isBaseOnly)
    named.clear();
  const bool isAdapter = hasFile(word, "adapter_config.json");
  if (word.ends_with(".so"))
    source.program = word;
  else if (!isAdapter)
    source.model = word;
  else if (named.empty())
    named.push_back(word);
  if (hasFile(source.model, kSettingsFile) &&
      !hasFile(source.model, "config.json"))
    return Status::invalid("'{}' has no adapter, because its run has not "
                           "ended. Fix: name one of its checkpoint folders",
                           word);
  QLORA_ASSIGN_OR_RETURN(source.adapters, parseAdapters(named));
  // A run that trained all weights wrote a model.
  run = isAdapter                 ? word
        : source.adapters.empty() ? source.model
                                  : source.adapter();
  return Status::ok();
}

StatusOr<GenerationSource> findSource(const std::string &word,
                                      std::span<const OptionSetting> given) {
  GenerationSource source;
  std::string run;
  QLORA_RETURN_IF_ERROR(
      resolveFolders(word, textsOf(given, "adapter"), source, run));
  if (source.program.empty()) {
    std::vector<std::string> runs = {run};
    for (const NamedAdapter &adapter : source.adapters)
      runs.push_back(adapter.folder);
    QLORA_RETURN_IF_ERROR(checkSameQuantization(runs, given));
  }
  if (!source.adapters.empty())
    QLORA_RETURN_IF_ERROR(addAdapterSettings(source));
  std::string base = source.model;
  if (source.model.empty() && source.program.empty()) {
    QLORA_ASSIGN_OR_RETURN(base, baseOf(run));
    if (!base.empty())
      source.defaults.insert(source.defaults.begin(),
                             settingOf("model_name_or_path", base));
  }
  if (hasFile(run, kSettingsFile)) {
    source.run = run;
    QLORA_RETURN_IF_ERROR(addRunSettings(run, source.defaults));
  }
  QLORA_RETURN_IF_ERROR(warnOfOtherBases(base, source.adapters));
  // Some initial adapters change the base.
  if (source.isBaseOnly)
    std::erase_if(source.defaults, [](const OptionSetting &setting) {
      return setting.row->name == std::string_view("init_lora_weights");
    });
  return source;
}

} // namespace qlora
