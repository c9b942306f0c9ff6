// SPDX-License-Identifier: MIT

// The options of a run, resolved from layers. Later layers win:
//
//   defaults of the table < recorded in train.so < YAML file < command line
//
//   Options options;
//   QLORA_RETURN_IF_ERROR(options.applyRecorded(module.config_json));
//   QLORA_RETURN_IF_ERROR(options.applyYaml("train.yaml"));
//   QLORA_RETURN_IF_ERROR(options.applySettings(commandLine.settings));
//   QLORA_RETURN_IF_ERROR(options.validate());
//   int64_t rank = options.integer("lora_r");
//
// The compiler skips applyRecorded and writes `recorded()` into train.so. After
// applyRecorded, an option of scope kProgram accepts only its recorded value.
// Any other value is an error that says to recompile.

#ifndef QLORA_RUNTIME_OPTIONS_OPTIONS_H
#define QLORA_RUNTIME_OPTIONS_OPTIONS_H

#include <nlohmann/json.hpp>

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Options/DataValues.h"
#include "runtime/Options/OptionTable.h"
#include "runtime/Options/OptionYaml.h"
#include "runtime/Options/Problems.h"

namespace qlora {

/// One `--name value` of a command line.
struct OptionSetting {
  const OptionRow *row;
  std::string text;
  std::string written; ///< the name as the user spelled it, for errors
};

/// Returns the error for an unknown option, with the nearest name of `known`.
Status unknownOption(std::string_view name, std::span<const std::string> known);

/// Returns the error for a name that is refused (OptionRow::aliases).
Status refusedOption(const OptionName &name);

class Options {
public:
  enum class Source { kDefault, kRecorded, kYaml, kCommandLine };

  /// Sets the defaults of `table`, which must outlive this object.
  explicit Options(std::span<const OptionRow> table = optionTable());

  /// Applies JSON from recorded(). Other keys become recordedMetadata().
  Status applyRecorded(std::string_view text);

  /// Applies a YAML file. OptionScope has the folder to which paths are
  /// relative. `~` or null resets an option to its default.
  Status applyYaml(const std::string &path);

  /// Applies entries read from `path`. A tool may have translated their names
  /// from other configuration formats (tools/qlora/ForeignConfigKeys.h).
  /// Returns all errors together, with the problems found before.
  Status applyEntries(std::span<const YamlEntry> entries,
                      const std::string &path, Problems problems = {});

  /// Applies, in order, the settings whose row is in this table. If an option
  /// repeats, the last setting wins, but kPaths options collect all paths. Two
  /// different input files for one kPath are an error: one would not be read.
  Status applySettings(std::span<const OptionSetting> settings);
  /// Sets this table's option `name`, which errors call `written`.
  Status applySetting(std::string_view name, const std::string &text,
                      const std::string &written) {
    const OptionSetting setting{findOption(table, name), text, written};
    return applySettings({&setting, 1});
  }

  /// Checks for options that contradict each other.
  Status validate() const;

  // Accessors. `name` must be a canonical name of an option of that type. This
  // is asserted, since the names are constants in the code.
  bool boolean(std::string_view name) const;
  /// Returns the format (Kernels/Math/Stored.h) to which weights are quantized
  /// on load; empty if they are not quantized.
  std::string quantizedFormat() const;
  /// Sequences per row of data in a micro-batch: 2 for preference pairs, and
  /// for KTO rows with a mismatched answer (Data/KtoKlPairs.h); otherwise 1.
  int64_t linesOfRow() const;
  int64_t integer(std::string_view name) const; ///< kInt, kSize
  /// Returns the steps of a kSteps option; a fraction of `totalSteps` is
  /// rounded up, as in transformers.
  int64_t steps(std::string_view name, int64_t totalSteps) const;
  double number(std::string_view name) const;    ///< kFloat, kSteps
  std::string text(std::string_view name) const; ///< kString, kPath, kChoice
  std::vector<std::string> names(std::string_view name) const;
  std::vector<int64_t> lengths(std::string_view name) const;
  std::map<std::string, double> numberMap(std::string_view name) const;
  std::map<std::string, std::string> textMap(std::string_view name) const;
  std::vector<WeightedPath> paths(std::string_view name) const;
  const nlohmann::ordered_json &
  value(std::string_view name) const; ///< of any type
  Source source(std::string_view name) const;
  /// Returns whether any layer sets the option.
  bool isGiven(std::string_view name) const {
    return source(name) != Source::kDefault;
  }
  /// Name of an option in errors: the YAML key if YAML set it, else the flag.
  std::string spelling(std::string_view name) const;

  /// Returns the options as a JSON object for train.so. Paths are absolute.
  /// Omits unset paths and kOutput options. Adds `facts`: values that the
  /// compiler determines and the runtime needs, such as vocab_size.
  nlohmann::ordered_json
  recorded(const nlohmann::ordered_json &facts = {}) const;

  /// Returns the recorded value of a key that is not an option, or null.
  const nlohmann::ordered_json &recordedMetadata(std::string_view key) const;

  /// Returns the recorded values of all keys that are not options.
  const nlohmann::ordered_json &recordedMetadata() const { return facts; }

  /// Returns all options as YAML, in the order of the table.
  std::string resolvedYaml() const;

private:
  struct Value {
    nlohmann::ordered_json value;
    Source source = Source::kDefault;
  };

  Status validateData() const;
  Status set(const OptionRow &row, nlohmann::ordered_json value, Source source);
  /// `given`: option -> key and line of this file that set it.
  Status applyYamlEntry(YamlEntry entry, const std::string &folder,
                        const std::string &where,
                        std::map<std::string, std::string> &given);
  const Value &find(std::string_view name) const;

  std::span<const OptionRow> table;
  std::map<std::string, Value, std::less<>> values;
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();
  bool isCompiled = false;
  /// Per option: the error for a YAML value that differs from the compiled
  /// program. A flag for the option removes its error. validate() returns the
  /// first error that is left.
  std::map<std::string, Status> contradictions;
};

} // namespace qlora

#endif // QLORA_RUNTIME_OPTIONS_OPTIONS_H
