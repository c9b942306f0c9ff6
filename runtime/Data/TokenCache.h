// SPDX-License-Identifier: MIT

// Converts JSONL and other text to a rows file with qlora-data, in the user's
// cache. The file's name is a hash of everything that its rows depend on
// (`qlora-data --print-key`), so a repeated run starts at once, and a changed
// data file gets another name. The cache is not in the output folder, which
// users publish.

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
  std::string dataFile;    ///< a data file, or a folder of them
  std::string modelFolder; ///< folder of the model, with the tokenizer
  std::string converter;   ///< path of qlora-data
  std::string cacheFolder; ///< created if missing, readable for this user only
  int64_t maxLength = 0;   ///< 0: rows are not cut
  int64_t maxSamples = 0;  ///< only the first rows of the data; 0: all
  int64_t minLength = 0;   ///< rows of fewer tokens are left out
  bool dropDuplicates = false;     ///< leave out rows that equal an earlier one
  bool dropSystemMessages = false; ///< leave out the first message if of system
  int64_t vocabSize = 0;
  bool completionOnlyLoss = true;
  bool assistantOnlyLoss = true;
  /// Keep rows whose tools or messages the chat template drops.
  bool allowTemplateDrops = false;
  bool pairs = false;    ///< rows are pairs of a chosen and a rejected answer
  bool unpaired = false; ///< rows have one answer, desirable or not
  /// File or name of a built-in template; empty: the tokenizer's template.
  std::string chatTemplate;
  std::vector<std::string> formats = {}; ///< value of --row-format; empty: any
  std::string excess = "truncate";       ///< value of --excess-length-strategy
  /// Value of --packing-strategy, if it joins rows of all files and cuts them.
  std::string packing = {};
  std::string endToken = {}; ///< value of --eos-token
  /// Maps a column, such as "prompt", to its name in the data. "": ignored.
  std::map<std::string, std::string> columns = {};
  int64_t workers = 0; ///< processes that tokenise; 0: one per CPU
  /// Limit for the bytes of all rows files in the folder; the least recently
  /// used files are deleted first.
  uint64_t cacheLimit = uint64_t(10) << 30;
};

/// Returns the flags of qlora-data that determine the tokens.
std::vector<std::string> converterFlags(const TokenRequest &request);

/// Returns `tokens/` in userCacheFolder(); kUnavailable if that is empty.
StatusOr<std::string> tokenCacheFolder();

/// Returns the path of the request's rows file, which makeCachedRows() creates.
StatusOr<std::string> cachedRowsPath(const TokenRequest &request);

/// Creates the rows file unless it exists and is undamaged. Several processes
/// may do this at once. Returns qlora-data's errors (file:line: ...) unchanged.
/// `progress` receives bytes of the data file. `everySecond` can end the work.
Status makeCachedRows(const TokenRequest &request, const std::string &path,
                      const ProgressListener &progress,
                      const WatchListener &everySecond = {});

/// Returns the path of qlora-data: in this executable's folder, else on PATH.
StatusOr<std::string> findConverter();

/// Returns qlora-data's error from its standard error: the last line, without
/// the program's name.
std::string converterError(std::string errors);

/// Counts in the metadata of a file that qlora-data made.
struct RowsMetadata {
  explicit RowsMetadata(const SafetensorsFile &file);

  bool isKnown = false; ///< whether qlora-data made the file
  int64_t tokens = 0, labelledTokens = 0;
  int64_t maxLength = 0;
  int64_t truncatedRows = 0, truncatedTokens = 0;
  int64_t droppedRows = 0;    ///< rows without a labelled token
  int64_t cutOffRows = 0;     ///< droppedRows whose labels maxLength cut off
  int64_t tooLongRows = 0;    ///< droppedRows left out for their length
  std::string chosenTemplate; ///< the template, if not the tokenizer's
  int64_t splitRows = 0;      ///< conversations that became several rows
  int64_t droppingRows = 0;   ///< rows whose template drops tools or messages
  int64_t unreasonedRows = 0; ///< rows whose template leaves out reasoning
};

/// Messages on qlora-data's changes to the rows, from the file's metadata;
/// empty if there is nothing to report.
struct ConversionNotes {
  std::string note;    ///< the chat template, if it is unusual
  std::string warning; ///< what qlora-data cut or left out
};
StatusOr<ConversionNotes> conversionNotes(const std::string &rowsPath);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_TOKENCACHE_H
