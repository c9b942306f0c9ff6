// SPDX-License-Identifier: MIT

// The proofs of an export: which losses were measured on which data, by this
// program and by the readers of the format. Written as export.json and as a
// model card, README.md, with the same table.

#ifndef QLORA_RUNTIME_EXPORT_EXPORTREPORT_H
#define QLORA_RUNTIME_EXPORT_EXPORTREPORT_H

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/Base/Status.h"

namespace qlora {

/// What another program measured on an artefact.
struct ReaderResult {
  std::string name;           ///< "transformers 5.24.0"; empty: not checked
  std::string notChecked;     ///< the reason if there is no loss
  std::optional<double> loss;
  int64_t equalTensors = 0; ///< tensors with the values of the files
};

/// One file or folder, or one way that was tried to make it.
struct Artefact {
  std::string name; ///< "merged into the dequantized base, BF16"
  bool isWritten = false; ///< false: only measured
  std::optional<double> loss; ///< measured by qlora
  ReaderResult reader = {};
  /// Why its loss may differ from the training's: "rounding to BF16".
  std::string cause;
};

struct ExportReport {
  std::string format;   ///< --to
  std::string base;     ///< name of the base model
  std::string adapter;  ///< name of the adapter's folder
  std::string dataName; ///< empty: nothing was measured
  bool usesTrainingRows = false;
  int64_t rows = 0;
  std::optional<double> lossBefore; ///< of the base
  std::optional<double> lossTrained; ///< of the base with the adapter
  std::vector<Artefact> artefacts = {};
  std::vector<std::string> notes = {}; ///< sentences

  /// Returns a warning for each artefact that is written and whose loss differs
  /// from the training's by more than 1 % of what the training gained.
  std::vector<std::string> warnings() const;
  nlohmann::ordered_json json() const;
  /// The table of losses, as Markdown.
  std::string table() const;
  /// Writes export.json.
  Status write(const std::string &folder) const;
};

/// Returns README.md for a merged model. `title`: name of its folder. `choice`:
/// sentences that say which base the adapter was added to.
std::string mergedCard(const ExportReport &report, const std::string &title,
                       const std::string &choice);

} // namespace qlora

#endif // QLORA_RUNTIME_EXPORT_EXPORTREPORT_H
