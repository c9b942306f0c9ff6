// SPDX-License-Identifier: MIT

// From the option train_file or validation_file to a dataset.

#ifndef QLORA_RUNTIME_SESSION_DATAFILES_H
#define QLORA_RUNTIME_SESSION_DATAFILES_H

#include <memory>
#include <string>

#include "runtime/Core/Options.h"
#include "runtime/Core/Progress.h"
#include "runtime/Core/Status.h"
#include "runtime/Session/Dataset.h"
#include "runtime/Session/Metrics.h"
#include "runtime/Session/Program.h"
#include "runtime/Session/RankGroup.h"

namespace qlora {

struct DataRequest {
  const Options &options;
  const CompiledVariants &variants;
  const nlohmann::json &vocabSize; ///< as recorded in the module
  /// Bytes of JSONL that have become tokens; called on the rank that makes
  /// them.
  ProgressListener progress = {};
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
/// wait. `metrics` (null on other ranks) hears what qlora-data cut or left out.
/// `summary`, if it is not null either, gets what there is, for that rank's
/// report.
StatusOr<std::unique_ptr<Dataset>> openDataFile(const DataRequest &request,
                                                const std::string &option,
                                                RankGroup &group,
                                                Metrics *metrics,
                                                DataSummary *summary = nullptr);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_DATAFILES_H
