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

/// What is in the files of an option, for people.
struct DataSummary {
  int64_t rows = 0;
  int64_t tokens = 0; ///< without padding
  int64_t labelledTokens = 0;
  int64_t truncatedRows = 0; ///< of qlora-data's files, as the next
  int64_t droppedRows = 0;   ///< not among `rows`
  int64_t longest = 0;       ///< tokens of a row; 0: of a token file, as the next
  int64_t median = 0;
};

/// What an option names: a file's path, or how many there are.
std::string dataName(const Options &options, const std::string &option);

/// Whether the files of a run that trains, or only evaluates, are there: what
/// openDataFile says before it reads any.
Status checkDataFiles(const Options &options, bool trains);

/// Opens what `option` names. All ranks call it: the first one of each machine
/// tokenises what is text, unless the user's cache has it, while the others
/// wait. `summary`, if it is not null, gets what there is on the rank that
/// reports; `validation`, if it is not null, the rows that --val-set-size keeps
/// from the others, where it keeps some.
StatusOr<std::unique_ptr<Dataset>>
openDataFile(const DataRequest &request, const std::string &option,
             RankGroup &group, DataSummary *summary = nullptr,
             std::unique_ptr<Dataset> *validation = nullptr);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_DATAFILES_H
