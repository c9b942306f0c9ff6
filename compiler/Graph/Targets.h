// SPDX-License-Identifier: MIT

// PEFT's rules for which modules get an adapter, and with which rank and
// alpha (peft/tuners/tuners_utils.py, check_target_module_exists, and
// get_pattern_key). Knows no MLIR.

#ifndef QLORA_COMPILER_GRAPH_TARGETS_H
#define QLORA_COMPILER_GRAPH_TARGETS_H

#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace qlora {

class Targets {
public:
  /// `json` is a list of suffixes, a regular expression that matches the
  /// whole path, or "all-linear" (in any case). The syntax is ECMAScript's,
  /// which is Python's but for look-behind, named groups and inline flags:
  /// those are an error, never read as something else.
  /// On a mistake returns false and says what in `error`.
  bool parse(const std::string &json, std::string &error);

  /// Leaves those modules that a list names whose paths have one of these
  /// numbers (PEFT's layers_to_transform, JSON), behind one of `patterns`
  /// (layers_pattern, JSON) where there are any. A module that is named by its
  /// whole path stays, as in PEFT. An error where this is no list of names.
  bool parseLayers(const std::string &json, const std::string &patterns,
                   std::string &error);

  /// True where the module at `path` gets an adapter.
  bool matches(const std::string &path) const;

  /// A number of layers_to_transform that is in no path which a list names;
  /// nullopt where there is none such.
  std::optional<int64_t>
  findUnmatchedLayer(const std::vector<std::string> &paths) const;

  /// True for "all-linear".
  bool isAllLinear() const { return all; }
  /// The names of a list, in its order; empty for the other forms.
  const std::vector<std::string> &getNames() const { return suffixes; }

private:
  bool all = false;
  /// The number of its layer in a path; -1 without one.
  int64_t layerOf(const std::string &path) const;
  bool isNamed(const std::string &path) const;

  std::vector<std::string> suffixes;
  std::optional<std::regex> pattern;
  std::set<int64_t> layers;           ///< empty: all
  std::vector<std::regex> beforeLayer; ///< with the number as a group
};

/// PEFT's `modules_to_save`, a JSON list of names; what is none is an error.
bool parseSavedModules(const std::string &json, std::vector<std::string> &names,
                       std::string &error);

/// True where `path` is a module of PEFT's `modules_to_save`, or inside one:
/// such a module gets no adapter.
bool isSavedModule(const std::string &path,
                   const std::vector<std::string> &names);

/// Rank or alpha patterns: {"q_proj": 4, "layers.0.*down": 16}.
class ValuePatterns {
public:
  bool parse(const std::string &json, std::string &error);

  /// The value of the first key, in the order of the text, that matches the
  /// end of `path` after a dot (or the whole path), else that of the key
  /// spelled like `path`, else nullopt.
  std::optional<double> lookup(const std::string &path) const;

  /// The first key that matches none of `paths`.
  std::optional<std::string>
  findUnmatched(const std::vector<std::string> &paths) const;

  /// The first value that cannot be a rank, which is a whole number from 1 to
  /// 2^20: (pattern, value).
  std::optional<std::pair<std::string, double>> findNoRank() const;

private:
  struct Pattern {
    std::string key;
    std::regex regex;
    double value;
  };
  std::vector<Pattern> patterns;
};

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_TARGETS_H
