// SPDX-License-Identifier: MIT

// Opens the files of the options train_file and validation_file as datasets.

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
  bool trains = true; ///< else train_file may only have validation rows
  /// Returns a listener for the bytes of an option's text tokenised so far.
  std::function<ProgressListener(const std::string &option)> progress = {};
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
/// openDataFiles(). Without `trains`, the run only evaluates.
Status checkDataFiles(const Options &options, bool trains);

struct SessionData {
  std::unique_ptr<Dataset> training;   ///< null: the run does not train
  std::unique_ptr<Dataset> validation; ///< null: the run does not evaluate
  DataSummary summary; ///< of train_file, on the rank that reports
};

/// Opens the files of both options. All ranks must call it. The first rank of
/// each machine tokenises text that is not in the user's cache, and checks all
/// files, while the others wait.
StatusOr<SessionData> openDataFiles(const DataRequest &request,
                                    RankGroup &group);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_DATAFILES_H
