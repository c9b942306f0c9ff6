// SPDX-License-Identifier: MIT

// What the formats of `qlora export` share: the run, its adapter, the base, and
// the model with the adapter merged into it.

#ifndef QLORA_TOOLS_QLORA_EXPORTJOB_H
#define QLORA_TOOLS_QLORA_EXPORTJOB_H

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "frontend/HfConfig.h"
#include "runtime/Base/Status.h"
#include "runtime/Export/MergedFolder.h"
#include "runtime/Export/MergedModel.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Options/Options.h"

namespace qlora {

/// The base that an adapter is added to.
enum class BaseChoice {
  kFiles,       ///< the values of the base's files, which are not quantized
  kDequantized, ///< decoded values: the ones that the training computed with
};

/// Whether a file or folder exists.
bool isThere(const std::filesystem::path &path);

/// Name in messages, tables and `--merge-into`.
const char *nameOf(BaseChoice choice);

struct ExportJob {
  std::string format; ///< --to
  Options own;        ///< options of the command
  /// Options of the training: of config.resolved.yaml, else those that the
  /// adapter's folder implies.
  Options trained;
  bool hasSettings = false; ///< config.resolved.yaml exists
  std::string run;          ///< folder with the adapter
  std::string logFolder;    ///< folder with the run's metrics
  std::string output;
  std::string trainedBase; ///< model folder of the training
  std::string base;        ///< model folder for BaseChoice::kFiles, or empty
  std::string baseName;    ///< for people: the hub's name or the folder's
  ModelConfig config;      ///< of trainedBase
  std::vector<BaseChoice> choices; ///< possible ones, at least one
  /// Why a choice is missing; empty, or a sentence.
  std::string missingChoice;

  /// Resolves the first argument. Opens no weights.
  static StatusOr<ExportJob> find(const std::string &word, Options own);

  bool trainsQuantized() const {
    return !trained.quantizedFormat().empty() || config.storedFormat;
  }
  /// Name of the LM head's weight.
  std::string headName() const;
  /// Merges into a base. `program`: of the training, needed for kDequantized
  /// if the training quantized the base when it read it.
  StatusOr<MergedModel> open(BaseChoice choice,
                             const LoadedModule *program) const;
  /// Opens the values of a base without the adapter.
  StatusOr<MergedModel> openBase(BaseChoice choice) const;
  /// Name of the output folder.
  std::string title() const;
  /// Returns the type of --outtype; no value for auto.
  WeightType weightType() const;
};

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_EXPORTJOB_H
