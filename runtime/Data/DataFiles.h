// SPDX-License-Identifier: MIT

// From the option train_file or validation_file to a dataset.

#ifndef QLORA_RUNTIME_DATA_DATAFILES_H
#define QLORA_RUNTIME_DATA_DATAFILES_H

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/Base/Options.h"
#include "runtime/Base/Progress.h"
#include "runtime/Base/Status.h"
#include "runtime/Data/Dataset.h"
#include "runtime/Module/CompiledVariants.h"
#include "runtime/Ranks/RankGroup.h"

namespace qlora {

struct DataRequest {
  const Options &options;
  const CompiledVariants &variants;
  const nlohmann::json &vocabSize; ///< as recorded in the module
  /// Bytes of JSONL that have become tokens; called on the rank that makes
  /// them.
  ProgressListener progress = {};
  /// Hear what qlora-data cut or left out, and what costs time; empty on ranks
  /// that report nothing.
  std::function<void(std::string_view)> note = {}, warn = {};
};

/// What is in a file, for people.
struct DataSummary {
  int64_t rows = 0;
  int64_t tokens = 0; ///< without padding
  int64_t labelledTokens = 0;
  int64_t truncatedRows = 0; ///< of JSONL, as the next
  int64_t droppedRows = 0;   ///< not among `rows`
};

/// Opens the file that `option` names. All ranks call it: the first one of each
/// machine tokenises JSONL, unless the user's cache has it, while the others
/// wait. `summary`, if it is not null, gets what there is on the rank that
/// reports.
StatusOr<std::unique_ptr<Dataset>> openDataFile(const DataRequest &request,
                                                const std::string &option,
                                                RankGroup &group,
                                                DataSummary *summary = nullptr);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_DATAFILES_H
