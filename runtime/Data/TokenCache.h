// SPDX-License-Identifier: MIT

// JSONL and its like as a rows file: calls qlora-data and keeps the result in the user's
// cache, under a name that follows what the rows depend on, so that the same run
// again starts at once and a changed file is never mistaken for an old one.
// What that is, qlora-data knows: `qlora-data --print-key`. It is not in the
// output folder, which people publish.

#ifndef QLORA_RUNTIME_DATA_TOKENCACHE_H
#define QLORA_RUNTIME_DATA_TOKENCACHE_H

#include <cstdint>
#include <map>
#include <string>

#include "runtime/Base/Progress.h"
#include "runtime/Base/Status.h"
#include "runtime/Base/Subprocess.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

struct TokenRequest {
  std::string dataFile;    ///< or a folder of them
  std::string modelFolder; ///< with the tokenizer
  std::string converter;   ///< qlora-data
  std::string cacheFolder; ///< created when missing, for this user alone
  int64_t maxLength = 0;
  int64_t vocabSize = 0;
  bool completionOnlyLoss = true;
  bool assistantOnlyLoss = true;
  /// Rows of which the chat template drops tools or messages are learned.
  bool allowTemplateDrops = false;
  bool pairs = false;    ///< of answers, chosen and rejected
  bool unpaired = false; ///< answers, desirable or not
  /// A file, or the name of one that comes with qlora-data; empty: the
  /// tokenizer's.
  std::string chatTemplate;
  std::vector<std::string> formats = {}; ///< --row-format; none: any
  std::string excess = "truncate";       ///< --excess-length-strategy
  /// What columns are called in the data: "prompt" -> "question"; "": a column
  /// is not read.
  std::map<std::string, std::string> columns = {};
  int64_t workers = 0; ///< processes; 0: one for each CPU
  /// Bytes of all rows in the folder; those that were not used for long make
  /// room.
  uint64_t cacheLimit = uint64_t(10) << 30;
};

/// `tokens/` of userCacheFolder(). kUnavailable where the user has none.
StatusOr<std::string> tokenCacheFolder();

/// Where the rows of the request are, once makeCachedRows() has made them.
StatusOr<std::string> cachedRowsPath(const TokenRequest &request);

/// Makes the rows file unless it is there, and sound. Several processes may do
/// so at once. qlora-data's errors (file:line: ...) are returned as they are.
/// `progress` hears bytes of the data file; an error of `everySecond` ends the
/// work.
Status makeCachedRows(const TokenRequest &request, const std::string &path,
                      const ProgressListener &progress,
                      const WatchListener &everySecond = {});

/// qlora-data beside this executable, or else in PATH.
StatusOr<std::string> findConverter();

/// What qlora-data has counted, from its file's metadata.
struct RowsNumbers {
  explicit RowsNumbers(const SafetensorsFile &file);

  bool isKnown = false; ///< the file is qlora-data's
  int64_t tokens = 0, labelledTokens = 0;
  int64_t maxLength = 0;
  int64_t truncatedRows = 0, truncatedTokens = 0;
  int64_t droppedRows = 0;    ///< without a token to be learned
  int64_t cutOffRows = 0;     ///< of these: maxLength has cut it off
  int64_t tooLongRows = 0;    ///< of these: left out for their length
  std::string chosenTemplate; ///< in place of the tokenizer's
  int64_t splitRows = 0;      ///< conversations that became several rows
  int64_t droppingRows = 0;   ///< the template drops tools or messages
  int64_t unreasonedRows = 0; ///< the template leaves out their reasoning
};

/// What qlora-data did to the rows, from the file's metadata; either is empty
/// when there is nothing to say.
struct ConversionNotes {
  std::string note;    ///< its chat template, if that is not the usual
  std::string warning; ///< what it cut or left out
};
StatusOr<ConversionNotes> conversionNotes(const std::string &rowsPath);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_TOKENCACHE_H
