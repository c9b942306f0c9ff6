// SPDX-License-Identifier: MIT

// What ForeignParallel.cpp, ForeignDeepSpeed.cpp and ForeignFsdp.cpp share.

#ifndef QLORA_TOOLS_QLORA_FOREIGNPARALLELSECTIONS_H
#define QLORA_TOOLS_QLORA_FOREIGNPARALLELSECTIONS_H

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Options/OptionTable.h"
#include "tools/qlora/ForeignParallel.h"
#include "tools/qlora/ForeignRows.h"

namespace qlora {

/// Translates the sections of a file and collects the resulting options.
class ParallelSections {
public:
  ParallelSections(const std::string &path, RankCounts ranks)
      : path(path), ranks(ranks) {}

  Status add(const YamlEntry &entry);
  std::vector<YamlEntry> options();

private:
  Status addDeepSpeed(const nlohmann::ordered_json &value);
  Status addDeepSpeedConfig(const nlohmann::ordered_json &config);
  Status addZero(const nlohmann::ordered_json &zero);
  Status addStage(const std::string &stage);
  Status addOffload(const char *what, const nlohmann::ordered_json &where);
  Status addFsdpWords(const nlohmann::ordered_json &value);
  Status addFsdpConfig(const nlohmann::ordered_json &config);
  Status addFsdpKey(const std::string &key,
                    const nlohmann::ordered_json &value);
  Status addStrategy(std::string word);
  Status addSize(const YamlEntry &entry, const std::string &name);
  std::string mesh() const;
  void keepInHost(const char *what, const YamlEntry &entry);
  Status setAxis(const std::string &axis, int64_t size);
  StatusOr<nlohmann::ordered_json> readJson(const std::string &name) const;
  void set(const char *option, nlohmann::ordered_json value) {
    entries.push_back({option, std::move(value), section.line, section.key});
  }

  const std::string &path;
  RankCounts ranks;
  YamlEntry section; ///< the section that is being read
  std::string axis;  ///< axis of --parallel, or "none"; empty: not given
  YamlEntry axisSection;
  int64_t axisSize = 0;
  std::vector<YamlEntry> entries;
  std::vector<std::string> offload; ///< values of --offload, each once
  YamlEntry offloadSection;
  std::map<std::string, int64_t> sizes; ///< by axis, of kSizes
  YamlEntry sizeEntry;                  ///< the last key with a size
};

/// Whether a word is one of `words`, which spaces separate.
inline bool isWordOf(const char *words, std::string_view word) {
  return std::ranges::count(splitWords(words), word) != 0;
}

inline Status notSupported(std::string_view key,
                           const nlohmann::ordered_json &value,
                           std::string_view words) {
  return Status::invalid("'{}: {}' {}", key, foreignNameOf(value), words);
}

/// Accepts FSDP versions 1 and 2, for which the same tensors are sharded.
Status checkFsdpVersion(const std::string &word);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_FOREIGNPARALLELSECTIONS_H
