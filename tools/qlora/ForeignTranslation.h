// SPDX-License-Identifier: MIT

// Translates one configuration file of another tool. ForeignConfigKeys.cpp
// translates most keys with a table and adds the tool's defaults.
// ForeignValues.cpp and ForeignSections.cpp translate keys whose values need
// code.

#ifndef QLORA_TOOLS_QLORA_FOREIGNTRANSLATION_H
#define QLORA_TOOLS_QLORA_FOREIGNTRANSLATION_H

#include <fmt/format.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/qlora/ForeignConfigKeys.h"
#include "tools/qlora/ForeignData.h"
#include "tools/qlora/ForeignRows.h"
#include "tools/qlora/ForeignTools.h"

namespace qlora {

class Translation {
public:
  explicit Translation(const ForeignRequest &request)
      : request(request), path(request.path), entries(request.entries) {}

  ForeignFile run();
  /// Returns the keys of other tools that are known.
  static std::vector<std::string> translatedKeys();

private:
  using Handler = Status (Translation::*)(const YamlEntry &);
  static const std::map<std::string_view, Handler> kHandlers;

  Status applyTool();
  Status translate(const YamlEntry &entry);
  Status translateNull(const YamlEntry &entry);
  Status translateRow(const YamlEntry &entry);
  Status translateBy(const ForeignRow &row, const YamlEntry &entry);
  Status skip(const YamlEntry &) { return Status::ok(); }
  Status translateNames(const YamlEntry &entry);
  Status translateData(const YamlEntry &entry);
  Status translateHubData(const YamlEntry &entry);
  Status checkFolder(const YamlEntry &entry);
  Status translateSpecialTokens(const YamlEntry &entry);
  Status translatePlugins(const YamlEntry &entry);
  Status translateSection(const YamlEntry &entry);
  Status translateModelConfig(const YamlEntry &entry);
  Status translateBfloat16(const YamlEntry &entry);
  Status translateDuplicates(const YamlEntry &entry);
  nlohmann::ordered_json distinctSets(const nlohmann::ordered_json &sets) const;
  Status translateTargets(const YamlEntry &entry);
  Status translateCheckpointing(const YamlEntry &entry);
  Status translateAccumulation(const YamlEntry &entry);
  Status translateStartAdapter(const YamlEntry &entry);
  Status translateDoTrain(const YamlEntry &entry);
  Status translateLength(const YamlEntry &entry);
  Status translatePrefLoss(const YamlEntry &entry);
  Status translateDoSample(const YamlEntry &entry);
  Status translateEvalLength(const YamlEntry &entry);
  Status translateTokenized(const YamlEntry &entry);
  Status translateAccelerator(const YamlEntry &entry);
  Status translateOtherModel(const YamlEntry &entry);
  Status translateReports(const YamlEntry &entry);
  Status translateTimeout(const YamlEntry &entry);
  Status translateTemplate(const YamlEntry &entry);
  Status translateLlamaTemplate(const YamlEntry &entry);
  Status translatePacking(const YamlEntry &entry);
  Status translateAllLinear(const YamlEntry &entry);
  Status translateEvalBatch(const YamlEntry &entry);
  Status translateObjective(const YamlEntry &entry);
  Status translateBatch(const YamlEntry &entry);
  Status translateWarmup(const YamlEntry &entry);
  Status translateScheduler(const YamlEntry &entry);
  Status translateLeastRate(const YamlEntry &entry);
  Status translatePerEpoch(const YamlEntry &entry);
  Status translateLossOfInputs(const YamlEntry &entry);
  Status translateUnfrozen(const YamlEntry &entry);
  Status translateTuning(const YamlEntry &entry);
  Status skipIfFreeze(const YamlEntry &entry);
  Status translateCurriculum(const YamlEntry &entry);
  Status translatePretraining(const YamlEntry &entry);
  Status checkPretraining(const YamlEntry &entry);
  Status translateStage(const YamlEntry &entry);
  bool isPretraining() const;
  void addData();
  void addParallel(std::vector<YamlEntry> options);
  Status addDefaults();
  Status addDefault(const ForeignDefault &initial);
  Status checkAdapter() const;
  Status checkShards() const;
  void turnOffDropout();
  void noteTool();

  Status refused(std::string_view words) const {
    return Status::invalid("{}", words);
  }
  void add(const YamlEntry &entry, const char *option,
           nlohmann::ordered_json value) {
    file.entries.push_back({option, std::move(value), entry.line, entry.key});
  }
  template <typename... Args>
  void note(const YamlEntry &entry, fmt::format_string<Args...> words,
            Args &&...args) {
    file.notes.push_back(
        fmt::format("{}:{}: '{}' ", path, entry.line, entry.key) +
        fmt::format(words, std::forward<Args>(args)...));
  }
  bool isOf(ForeignTool name) const { return tool && tool->tool == name; }
  const nlohmann::ordered_json *find(std::string_view key) const;
  std::string flagOf(std::string_view option) const;
  std::string valueOf(std::string_view option) const;
  std::string objective() const;

  const ForeignRequest &request;
  const std::string &path;
  std::span<const YamlEntry> entries;
  std::optional<FileTool> tool;
  ForeignData data;    ///< from all keys that name data sets
  YamlEntry dataEntry; ///< the first key that names a data set
  /// "KEY VALUE" for each default of the tool that run() adds to the file.
  std::vector<std::string> taken;
  ForeignFile file;
};

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_FOREIGNTRANSLATION_H
