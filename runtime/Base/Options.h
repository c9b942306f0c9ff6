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
// The compiler leaves the second line out and writes `recorded()` into
// train.so. After it, an option of scope kProgram can only be given the value
// that it already has: another one is an error that says to recompile.

#ifndef QLORA_RUNTIME_BASE_OPTIONS_H
#define QLORA_RUNTIME_BASE_OPTIONS_H

#include <nlohmann/json.hpp>

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/DataValues.h"
#include "runtime/Base/OptionTable.h"
#include "runtime/Base/Status.h"
#include "runtime/Base/OptionValue.h"

namespace qlora {

/// One `--name value` of a command line.
struct OptionSetting {
  const OptionRow *row;
  std::string text;
  std::string written; ///< as the user spelled the name, for errors
};

class Options {
public:
  enum class Source { kDefault, kRecorded, kYaml, kCommandLine };

  /// The defaults of `table`, which must outlive this object.
  explicit Options(std::span<const OptionRow> table = optionTable());

  /// `text`: a JSON object as recorded() writes it. Other keys are kept and
  /// found by recordedFact().
  Status applyRecorded(std::string_view text);

  /// Paths are relative as their scope says (OptionTable.h). `~` or null sets
  /// an option back to its default.
  Status applyYaml(const std::string &path);

  /// The same for what was read of `path`: a tool that understands other
  /// names too has translated the entries (tools/qlora/PeerKeys.h).
  Status applyEntries(std::span<const YamlEntry> entries,
                      const std::string &path);

  /// Applies the settings whose row is in this table, in order, and passes
  /// over the others. The last one wins, but of a kPaths all count, and a kPath
  /// given as two is an error: one of them would not be read.
  Status applySettings(std::span<const OptionSetting> settings);

  /// What no single value can show: options that contradict each other.
  Status validate() const;

  // Values. The name must be canonical and of that type (asserted: names are
  // written in our own code).
  bool boolean(std::string_view name) const;
  /// Of Kernels/Math/Stored.h, which weights become when they are loaded; empty:
  /// none.
  std::string quantizedFormat() const;
  /// Lines of a micro-batch for each row of data: 2 where answers come in pairs,
  /// or with a mismatched one (Data/MismatchedAnswers.h).
  int64_t linesOfRow() const;
  int64_t integer(std::string_view name) const; ///< kInt, kSize
  double number(std::string_view name) const;
  std::string text(std::string_view name) const; ///< kString, kPath, kChoice
  std::vector<std::string> names(std::string_view name) const;
  std::vector<int64_t> lengths(std::string_view name) const;
  std::map<std::string, double> numberMap(std::string_view name) const;
  std::map<std::string, std::string> textMap(std::string_view name) const;
  std::vector<WeightedPath> paths(std::string_view name) const;
  const nlohmann::ordered_json &
  value(std::string_view name) const; ///< any type
  Source source(std::string_view name) const;
  /// The name for an error: as in a YAML file where that set it, else as a
  /// flag.
  std::string spelling(std::string_view name) const;

  /// The options as a JSON object for train.so. Paths are absolute; a path
  /// that nobody set, and what is of scope kOutput, is left out. `facts` are
  /// added: what the compiler knows and the runtime needs, such as vocab_size.
  nlohmann::ordered_json
  recorded(const nlohmann::ordered_json &facts = {}) const;

  /// A key of the recorded object that is no option, or null.
  const nlohmann::ordered_json &recordedFact(std::string_view key) const;

  /// All of those keys.
  const nlohmann::ordered_json &recordedFacts() const { return facts; }

  /// All options as YAML, in the order of the table.
  std::string resolvedYaml() const;

private:
  struct Value {
    nlohmann::ordered_json value;
    Source source = Source::kDefault;
  };

  Status validateData() const;
  Status set(const OptionRow &row, nlohmann::ordered_json value, Source source);
  /// `given`: the key that set each option of this file so far.
  Status applyYamlEntry(YamlEntry entry, const std::string &folder,
                        const std::string &where,
                        std::map<std::string, std::string> &given);
  const Value &find(std::string_view name) const;

  std::span<const OptionRow> table;
  std::map<std::string, Value, std::less<>> values;
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();
  bool isCompiled = false;
  /// Values of the YAML file that the program was not compiled for, by option,
  /// until a flag overrides them; validate() returns the first.
  std::map<std::string, Status> contradictions;
};

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_OPTIONS_H
