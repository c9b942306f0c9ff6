// SPDX-License-Identifier: MIT

// Measures losses for `qlora export` as training does: with programs that
// evaluate the validation data of a run, in float32, and train nothing. A run's
// program evaluates with and without its adapter. For merged models, a program
// without quantization has an adapter whose B is zero.

#ifndef QLORA_TOOLS_QLORA_LOSSMETER_H
#define QLORA_TOOLS_QLORA_LOSSMETER_H

#include <optional>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Options/OptionTable.h"
#include "tools/qlora/Configuration.h"
#include "tools/qlora/ExportJob.h"
#include "tools/qlora/ScratchFolder.h"

namespace qlora {

class LossMeter {
public:
  /// Finds the data: --validation-file, else the run's validation data, else a
  /// part of its training data. Returns kInvalidArgument, with an option to
  /// set, if there are none. `job` must outlive the meter. Without
  /// `needsData`, only trainedProgram() works.
  static StatusOr<LossMeter> create(const ExportJob &job,
                                    bool needsData = true);

  /// The data for people: "held-out.jsonl", "2 % of train.jsonl".
  const std::string &dataName() const { return name; }
  /// Whether the data are training rows, because there are no others.
  bool isOfTraining() const { return usesTraining; }
  /// Makes the file of rows, unless a measurement has made it.
  Status makeRows();
  /// Number of rows, after the first measurement.
  int64_t rowCount() const { return rows; }
  /// JSONL file of the rows (Session/EvaluatedRows.h), after the first one.
  std::string rowsFile() const { return scratchFile("rows.jsonl"); }
  /// Path of a temporary file, which exists as long as the meter.
  std::string scratchFile(const std::string &name) const {
    return scratch.file(name);
  }

  /// Compiles the training's program, for float32, and returns its path.
  StatusOr<std::string> trainedProgram();
  /// Losses of the training's base, without and with the adapter. The loss of
  /// an adapter whose initialization changed the base is read from the log of
  /// the run; no value if that has none.
  StatusOr<std::optional<double>> ofBase();
  StatusOr<std::optional<double>> ofTrained();
  /// Loss of a model folder.
  StatusOr<double> ofModel(const std::string &folder);

private:
  LossMeter(const ExportJob &job, ScratchFolder scratch)
      : job(&job), scratch(std::move(scratch)) {}
  Status findData();
  Status useTrainingRows();
  void useFirstRows();
  std::vector<OptionSetting> trainedSettings() const;
  StatusOr<Configuration>
  configurationOf(std::vector<OptionSetting> settings) const;
  StatusOr<double> evaluate(std::vector<OptionSetting> settings);
  StatusOr<std::optional<double>> logged(bool first) const;

  const ExportJob *job;
  ScratchFolder scratch;
  std::vector<OptionSetting> data; ///< settings that name the rows
  std::string name;
  bool usesTraining = false;
  int64_t rows = 0;
  int64_t measured = 0; ///< number of evaluations, for names of folders
};

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_LOSSMETER_H
