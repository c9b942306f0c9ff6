// SPDX-License-Identifier: MIT

// Checks the model that a file names, if it can be read without fetching it,
// so that one message has the file's keys and its model.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "frontend/Families.h"
#include "frontend/HfConfig.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Options/OptionTable.h"
#include "tools/qlora/ForeignConfigKeys.h"
#include "tools/qlora/HubCache.h"

namespace qlora {

static const YamlEntry *findEntry(const ForeignFile &file,
                                  std::string_view option) {
  const OptionRow *row = findOption(optionTable(), option);
  const auto found =
      std::ranges::find_if(file.entries, [&](const YamlEntry &entry) {
        return entry.value.is_string() &&
               findOption(optionTable(), entry.key) == row;
      });
  return found == file.entries.end() ? nullptr : &*found;
}

/// Returns why the model in `folder` cannot be trained as the file says.
static Status checkModel(const ForeignFile &file, const std::string &folder) {
  const auto keys = nlohmann::json::parse(dumpJson(file.modelKeys));
  QLORA_ASSIGN_OR_RETURN(const ModelConfig config, readHfConfig(folder, keys));
  const YamlEntry *type = findEntry(file, "finetuning_type");
  if (!type || type->value != "full")
    return Status::ok();
  const bool isPartial =
      file.freeze ||
      std::ranges::count(file.entries, "unfrozen_parameters", &YamlEntry::key);
  if (config.experts.count > 0 && !isPartial)
    return Status::invalid("{} has experts, which cannot be trained in full: "
                           "use an adapter",
                           config.family->architecture);
  return Status::ok();
}

Status leaveOutExperts(const ForeignFile &file, Options &options,
                       std::vector<std::string> &notes) {
  constexpr const char *kTargets = "lora_target_modules";
  if (!file.isOfTool || options.value(kTargets) != "all-linear" ||
      options.text("finetuning_type") == "full")
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(
      const ModelConfig config,
      readHfConfig(options.text("model_name_or_path"), {}));
  const Experts &experts = config.family->experts;
  if (!experts.isThere() || experts.areStacked)
    return Status::ok();
  auto names = nlohmann::ordered_json::array(
      {"q_proj", "k_proj", "v_proj", "o_proj"});
  if (config.experts.sharedSize > 0 ||
      std::ranges::count(config.experts.layers, false))
    names.insert(names.end(), {"gate_proj", "up_proj", "down_proj"});
  if (config.experts.sharedSize > 0)
    names.push_back(
        experts.sharedGate.substr(experts.sharedGate.rfind('.') + 1));
  notes.push_back("all linear modules are those outside of the experts, as in "
                  "transformers 5, where experts are parameters");
  const std::string text = dumpJson(names);
  return options.applySetting(kTargets, text, text);
}

void addModelProblems(const ForeignRequest &request,
                      const std::string &revision, ForeignFile &file) {
  constexpr const char *kModel = "model_name_or_path";
  const YamlEntry *model = findEntry(file, kModel);
  const bool hasFlag =
      std::ranges::any_of(request.flags, [&](const OptionSetting &flag) {
        return flag.row->name == std::string_view(kModel);
      });
  if (!model || hasFlag)
    return;
  const auto base = std::filesystem::path(request.path).parent_path().string();
  const std::string folder = presentModelFolder(
      model->value.get<std::string>(), base, revision);
  if (folder.empty())
    return;
  const Status status = checkModel(file, folder);
  file.problems.add(status.withContext(fmt::format(
                        "{}:{}: '{}'", request.path, model->line,
                        model->spelling())),
                    model->line);
  const auto &tokens = file.specialTokens;
  if (status.isOk() && !tokens.empty())
    file.problems.add(checkSpecialTokens(tokens, request.path, folder),
                      tokens.front().line);
}

} // namespace qlora
