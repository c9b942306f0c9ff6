// SPDX-License-Identifier: MIT

// Opens the files of the option train_file or validation_file as a dataset.

#ifndef QLORA_RUNTIME_DATA_DATAFILES_H
#define QLORA_RUNTIME_DATA_DATAFILES_H

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/Base/Progress.h"
#include "runtime/Base/Status.h"
#include "runtime/Data/Dataset.h"
#include "runtime/Data/TokenCache.h"
#include "runtime/Module/CompiledVariants.h"
#include "runtime/Options/Options.h"
#include "runtime/Ranks/RankGroup.h"

namespace qlora {

struct DataRequest {
  const Options &options;
  const CompiledVariants &variants;
  const nlohmann::json &vocabSize; ///< tokenizer's size, recorded
  /// Reports the bytes of JSONL tokenised so far, on the rank that tokenises.
  ProgressListener progress = {};
  /// Receive messages: `note` about an unusual chat template, `warn` about cut
  /// or left-out rows and slow padding. Empty on ranks that report nothing.
  std::function<void(std::string_view)> note = {}, warn = {};
};

/// Statistics of the files of an option, for display.
struct DataSummary {
  int64_t rows = 0;
  int64_t tokens = 0; ///< tokens of all rows, without padding
  int64_t labelledTokens = 0;
  int64_t truncatedRows = 0; ///< only known for qlora-data's files, else 0
  int64_t droppedRows = 0; ///< only known for qlora-data's files; not in `rows`
  int64_t longest = 0;     ///< tokens of the longest row; 0 for a token file
  int64_t median = 0;      ///< tokens of the median row; 0 for a token file
};

/// Returns the request to tokenise a file with the options. The caller sets the
/// converter and the cache folder.
TokenRequest tokenRequest(const Options &options, const std::string &file,
                          int64_t maxLength, int64_t vocabSize);

/// Returns the path of an option's file for display, or its number of files.
std::string dataName(const Options &options, const std::string &option);

/// Checks that all files of a run exist before any is read, with the errors of
/// openDataFile(). Without `trains`, the run only evaluates.
Status checkDataFiles(const Options &options, bool trains);

/// Opens the files of `option`. All ranks must call it. The first rank of each
/// machine tokenises text that is not in the user's cache, while the others
/// wait. `summary`, if not null, is filled on the rank that reports.
/// `validation`, if not null, receives the rows that --val-set-size splits off.
StatusOr<std::unique_ptr<Dataset>>
openDataFile(const DataRequest &request, const std::string &option,
             RankGroup &group, DataSummary *summary = nullptr,
             std::unique_ptr<Dataset> *validation = nullptr);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_DATAFILES_H
