// SPDX-License-Identifier: MIT

// PEFT's rules for which modules get an adapter, with which rank and alpha
// (peft/tuners/tuners_utils.py, check_target_module_exists, and
// get_pattern_key). Independent of MLIR.

#ifndef QLORA_RUNTIME_OPTIONS_ADAPTERTARGETS_H
#define QLORA_RUNTIME_OPTIONS_ADAPTERTARGETS_H

#include <cstdint>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace qlora {

class Targets {
public:
  /// Parses `json`: a list of suffixes, a regular expression for the whole
  /// path, or "all-linear" (any case). The syntax is ECMAScript's, which equals
  /// Python's except for look-behind, named groups and inline flags: those are
  /// errors. On an error returns false and sets `error`.
  bool parse(const std::string &json, std::string &error);

  /// Restricts the targets to the layers in `json` (PEFT's
  /// layers_to_transform). A module's layer is the number in its path; with
  /// `patterns` (layers_pattern), the number after a pattern. As in PEFT, a
  /// target that equals a module's whole path matches in every layer. Fails if
  /// the targets are not a list of names.
  bool parseLayers(const std::string &json, const std::string &patterns,
                   std::string &error);

  /// Returns true if the module at `path` gets an adapter.
  bool matches(const std::string &path) const;

  /// Returns a layer of layers_to_transform in which no path of `paths` ends
  /// with a target; nullopt if there is no such layer.
  std::optional<int64_t>
  findUnmatchedLayer(const std::vector<std::string> &paths) const;

  /// Returns true for "all-linear".
  bool isAllLinear() const { return all; }
  /// Returns the listed targets in order; empty if they are not a list.
  const std::vector<std::string> &getNames() const { return suffixes; }

private:
  bool all = false;
  /// Returns the layer number in a path, or -1.
  int64_t layerOf(const std::string &path) const;
  bool isNamed(const std::string &path) const;

  std::vector<std::string> suffixes;
  std::optional<std::regex> pattern;
  std::set<int64_t> layers;           ///< empty: all
  std::vector<std::regex> beforeLayer; ///< capture the layer number
};

/// Parses PEFT's `modules_to_save`, a JSON list of names; fails otherwise.
bool parseSavedModules(const std::string &json, std::vector<std::string> &names,
                       std::string &error);

/// Returns true if `path` is a module of PEFT's `modules_to_save`, or inside
/// one: such a module gets no adapter.
bool isSavedModule(const std::string &path,
                   const std::vector<std::string> &names);

/// Returns the factor of B A: alpha / rank, or for rsLoRA (Kalajdzievski, 2023)
/// alpha / sqrt(rank).
double loraScale(double alpha, int64_t rank, bool rslora);

/// Rank or alpha patterns: {"q_proj": 4, "layers.0.*down": 16}.
class ValuePatterns {
public:
  bool parse(const std::string &json, std::string &error);

  /// Returns the value of the first key, in JSON order, whose regular
  /// expression matches `path` or its end after a dot. If none does, returns
  /// the value of the key equal to `path`, else nullopt.
  std::optional<double> lookup(const std::string &path) const;

  /// Returns the first key that matches none of `paths`.
  std::optional<std::string>
  findUnmatched(const std::vector<std::string> &paths) const;

  /// Returns the first (pattern, value) whose value is not a valid rank, an
  /// integer from 1 to 2^20.
  std::optional<std::pair<std::string, double>> findNoRank() const;

private:
  struct Pattern {
    std::string key;
    std::regex regex;
    double value;
  };
  std::vector<Pattern> patterns;
};

/// axolotl's `unfrozen_parameters`: regular expressions that must match the
/// beginning of a parameter's name. As in axolotl, a dot is itself, unless it
/// is followed by `+`.
class ParameterPatterns {
public:
  /// Parses a JSON list. Fails for a range of rows, such as "NAME[:32000]".
  bool parse(const std::string &json, std::string &error);

  bool isEmpty() const { return patterns.empty(); }
  /// Returns whether a pattern matches, and notes which.
  bool matches(const std::string &name);
  /// Returns the patterns that have matched no name so far.
  std::vector<std::string> unmatched() const;

private:
  struct Pattern {
    std::string text;
    std::regex regex;
    bool hasMatched = false;
  };
  std::vector<Pattern> patterns;
};

} // namespace qlora

#endif // QLORA_RUNTIME_OPTIONS_ADAPTERTARGETS_H
