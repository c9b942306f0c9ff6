// SPDX-License-Identifier: MIT

// All options of a fine-tuning run: Hugging Face name, other accepted
// spellings, type, default and help. qloracc and qlora-run read the same rows,
// so an option means the same in a YAML file, on either command line, and in
// train.so.

#ifndef QLORA_RUNTIME_OPTIONS_OPTIONTABLE_H
#define QLORA_RUNTIME_OPTIONS_OPTIONTABLE_H

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

/// Type of an option. Comments give the accepted text and, after an arrow, the
/// canonical JSON value if it differs from the text.
enum class OptionType {
  kBool, ///< true, false, yes, no, on, off, 1, 0 -> boolean
  kInt,  ///< integer, or a word of `choices` (kept as text)
  /// Number of steps, or a number between 0 and 1: a fraction of all steps.
  kSteps,
  kFloat,  ///< number; 1e-5 and "1e-5" are both accepted
  kString, ///< any text
  /// File or folder; empty: none. OptionScope has the folder to which paths are
  /// relative. A word of `choices` is kept as text.
  kPath,
  /// One or more paths, each with an optional weight. A flag has PATH or
  /// PATH:WEIGHT, and may be repeated. YAML has one path, or a list of paths or
  /// of {path, weight} -> one path, or an array of {path, weight}.
  kPaths,
  kChoice,    ///< one of `choices`
  kChoices,   ///< one of `choices` -> text; a list of them -> array
  kSize,      ///< bytes: 20GiB, 512MB -> integer; a word of `choices` is
              ///< kAutoSize
  kNames,     ///< list of names: [a, b] or a,b -> array
  kTargets,   ///< PEFT's target_modules: "all-linear" or a regular expression
              ///< -> string; a list of names -> array
  kLengths,   ///< different positive integers -> ascending array
  kTokens,    ///< integers without duplicates -> array in that order
  kNumbers,   ///< one integer or a list -> array in that order
  kFloats,    ///< one number or a list -> array in that order
  kNumberMap, ///< {name: number} -> object
  kTextMap,   ///< {name: text}, or name=text,name=text -> object
};

/// Whether values are paths to files or folders.
inline bool isPath(OptionType type) {
  return type == OptionType::kPath || type == OptionType::kPaths;
}

/// Where an option is recorded. Paths in a YAML file are relative to that file.
/// kOutput paths and command-line paths are relative to the working directory.
enum class OptionScope {
  kProgram, ///< determines train.so; fixed by qloracc
  kRun,     ///< recorded in train.so; a run may override it
  kOutput,  ///< selects what a run writes and where; never recorded, so that
            ///< runs elsewhere do not write to folders of this machine
};

/// Value of a size option set to "auto": the size is chosen for the machine.
inline constexpr int64_t kAutoSize = -1;

struct OptionRow {
  const char *name; ///< canonical, with underscores
  OptionType type;
  const char *initial; ///< default, as text
  OptionScope scope;
  const char *group; ///< heading in --help-all
  const char *help;
  /// Other names, separated by spaces. "bf16=bfloat16|float32" is a switch:
  /// true selects bfloat16, false float32. "x=value" is a switch that can only
  /// be true. "-x" is an earlier spelling, accepted but not shown. "!x" is
  /// refused with a hint, except in values that earlier versions recorded.
  const char *aliases = "";
  /// Allowed values, separated by spaces. "a=b" accepts a as a synonym of b but
  /// does not show it. "a_N" stands for a_ and a number.
  const char *choices = "";
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
};

/// One spelling of an option.
struct OptionName {
  const OptionRow *row = nullptr;
  std::string_view name = {};      ///< name with underscores
  std::string_view whenTrue = {};  ///< option value if the switch is true
  std::string_view whenFalse = {}; ///< option value if false; empty: an error
  char mark = 0; ///< '-': an earlier spelling; '!': refused; 0: shown

  bool isSwitch() const { return !whenTrue.empty(); }
  bool isShown() const { return mark == 0; }
  bool isRefused() const { return mark == '!'; }
};

/// The tables of one tool: its own options and the options of a run.
using OptionTables = std::span<const std::span<const OptionRow>>;

std::span<const OptionRow> optionTable();

/// Returns the row's own name, then all its aliases.
std::vector<OptionName> optionNames(const OptionRow &row);

/// Finds a name (dashes count as underscores); returns no row if there is none.
OptionName findOptionName(std::span<const OptionRow> table,
                          std::string_view name);
const OptionRow *findOption(std::span<const OptionRow> table,
                            std::string_view name);

/// Returns `text` with underscores instead of dashes.
std::string canonicalSpelling(std::string_view text);

/// Returns the flag of a name: "lora_r" -> "--lora-r", "o" -> "-o".
std::string flagSpelling(std::string_view name);

/// Returns the values of a row's `choices` that are not aliases of others.
std::vector<std::string_view> shownChoices(const OptionRow &row);

std::vector<std::string_view> splitWords(std::string_view words);

/// Returns the candidate nearest to `name` by edit distance, or empty if no
/// candidate is near enough.
std::string nearestName(std::string_view name,
                        std::span<const std::string> candidates);

/// Returns all shown names and aliases of the tables, for nearestName.
std::vector<std::string> allOptionNames(OptionTables tables);

} // namespace qlora

#endif // QLORA_RUNTIME_OPTIONS_OPTIONTABLE_H
