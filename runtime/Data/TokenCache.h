// SPDX-License-Identifier: MIT

// Converts JSONL and other text to a rows file with qlora-data, and keeps it in
// the user's cache. Its name is a key of everything that the rows depend on
// (`qlora-data --print-key`), so that a repeated run starts at once and a
// changed file is never confused with an old one. The cache is not in the
// output folder, which users publish.

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
  std::string dataFile;    ///< or a folder of data files
  std::string modelFolder; ///< with the tokenizer
  std::string converter;   ///< qlora-data
  std::string cacheFolder; ///< created when missing, for this user alone
  int64_t maxLength = 0;
  int64_t vocabSize = 0;
  bool completionOnlyLoss = true;
  bool assistantOnlyLoss = true;
  /// Keep rows whose tools or messages the chat template drops.
  bool allowTemplateDrops = false;
  bool pairs = false;    ///< pairs of answers, chosen and rejected
  bool unpaired = false; ///< answers, desirable or not
  /// A file, or the name of a template of qlora-data; empty: the tokenizer's
  /// own.
  std::string chatTemplate;
  std::vector<std::string> formats = {}; ///< --row-format; none: any
  std::string excess = "truncate";       ///< --excess-length-strategy
  /// Names of columns in the data: "prompt" -> "question"; "": ignore the
  /// column.
  std::map<std::string, std::string> columns = {};
  int64_t workers = 0; ///< processes; 0: one per CPU
  /// Bytes of all rows in the folder; the least recently used files are
  /// deleted.
  uint64_t cacheLimit = uint64_t(10) << 30;
};

/// Returns the flags of qlora-data that determine the tokens.
std::vector<std::string> converterFlags(const TokenRequest &request);

/// `tokens/` in userCacheFolder(). kUnavailable if the user has none.
StatusOr<std::string> tokenCacheFolder();

/// Path of the request's rows file, which makeCachedRows() makes.
StatusOr<std::string> cachedRowsPath(const TokenRequest &request);

/// Makes the rows file unless it exists and is sound. Several processes may do
/// so concurrently. Returns qlora-data's errors (file:line: ...) unchanged.
/// `progress` receives bytes of the data file; an error of `everySecond` ends
/// the work.
Status makeCachedRows(const TokenRequest &request, const std::string &path,
                      const ProgressListener &progress,
                      const WatchListener &everySecond = {});

/// Finds qlora-data in the folder of this executable, else in PATH.
StatusOr<std::string> findConverter();

/// Counts of qlora-data, from the metadata of its file.
struct RowsMetadata {
  explicit RowsMetadata(const SafetensorsFile &file);

  bool isKnown = false; ///< qlora-data made the file
  int64_t tokens = 0, labelledTokens = 0;
  int64_t maxLength = 0;
  int64_t truncatedRows = 0, truncatedTokens = 0;
  int64_t droppedRows = 0;    ///< without a labelled token
  int64_t cutOffRows = 0;     ///< of droppedRows: cut by maxLength
  int64_t tooLongRows = 0;    ///< of droppedRows: left out for their length
  std::string chosenTemplate; ///< used instead of the tokenizer's
  int64_t splitRows = 0;      ///< conversations that became several rows
  int64_t droppingRows = 0;   ///< the template drops tools or messages
  int64_t unreasonedRows = 0; ///< the template leaves out reasoning
};

/// Reports on qlora-data's changes to the rows, from the file's metadata; empty
/// strings if there is nothing to report.
struct ConversionNotes {
  std::string note;    ///< its chat template, if it is unusual
  std::string warning; ///< what it cut or left out
};
StatusOr<ConversionNotes> conversionNotes(const std::string &rowsPath);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_TOKENCACHE_H
