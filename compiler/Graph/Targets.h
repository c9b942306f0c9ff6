// SPDX-License-Identifier: MIT

// PEFT's rules for which modules get an adapter, and with which rank and
// alpha (peft/tuners/tuners_utils.py, check_target_module_exists, and
// get_pattern_key). Knows no MLIR.

#ifndef QLORA_COMPILER_GRAPH_TARGETS_H
#define QLORA_COMPILER_GRAPH_TARGETS_H

#include <map>
#include <optional>
#include <regex>
#include <string>
#include <vector>

namespace qlora {

class Targets {
public:
  /// `json` is a list of suffixes, a regular expression, or "all-linear".
  /// On a mistake returns false and says what in `error`.
  bool parse(const std::string &json, std::string &error);

  /// True where the module at `path` gets an adapter.
  bool matches(const std::string &path) const;

private:
  bool all = false;
  std::vector<std::string> suffixes;
  std::optional<std::regex> pattern;
};

/// Rank or alpha patterns: {"q_proj": 4, "layers.0.*down": 16}.
class ValuePatterns {
public:
  bool parse(const std::string &json, std::string &error);

  /// The value of the first key that matches the end of `path` after a dot
  /// (or the whole path), else nullopt.
  std::optional<double> lookup(const std::string &path) const;

private:
  std::vector<std::pair<std::regex, double>> patterns;
};

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_TARGETS_H
