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
  std::string notChecked;     ///< why there is no loss, or empty
  std::optional<double> loss;
  int64_t equalTensors = 0; ///< tensors with the values of the files
  /// Why its loss may differ; empty: as the artefact's.
  std::string cause = {};
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

/// What a model card says besides the report.
struct ModelCard {
  std::string title;   ///< name of the export's folder
  std::string library; ///< the hub's name of the library that loads it
  std::string usage;   ///< how to load it, as Markdown
  /// Sentences that say which base the adapter was added to; empty: it was not
  /// added to one.
  std::string choice = {};
};

/// Returns README.md for a merged model or an adapter.
std::string modelCard(const ExportReport &report, const ModelCard &card);

} // namespace qlora

#endif // QLORA_RUNTIME_EXPORT_EXPORTREPORT_H
