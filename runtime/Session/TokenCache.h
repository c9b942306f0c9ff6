// SPDX-License-Identifier: MIT

// JSONL as a rows file: calls qlora-data and keeps the result under
// `.cache/` of the output folder, named after the SHA-256 of the data, the
// tokenizer's files and the options, so that the same run again starts at
// once and a changed file is never mistaken for an old one.

#ifndef QLORA_RUNTIME_SESSION_TOKENCACHE_H
#define QLORA_RUNTIME_SESSION_TOKENCACHE_H

#include <cstdint>
#include <string>

#include "runtime/Core/Status.h"

namespace qlora {

struct TokenRequest {
  std::string dataFile;
  std::string modelFolder; ///< with the tokenizer
  std::string cacheFolder; ///< created when missing
  int64_t maxLength = 0;
  int64_t vocabSize = 0;
  bool completionOnlyLoss = true;
  bool assistantOnlyLoss = true;
  std::string chatTemplate; ///< file, or empty: the tokenizer's
};

/// Safetensors files are used as they are; anything else is JSONL.
bool isTokenData(const std::string &path);

/// Where the rows of the request are, once cachedRows() has made them.
StatusOr<std::string> cachedRowsPath(const TokenRequest &request);

/// Makes the rows file unless it is there. `converter`: path of qlora-data.
/// qlora-data's errors (file:line: ...) are returned as they are.
Status makeCachedRows(const TokenRequest &request, const std::string &path,
                      const std::string &converter);

/// qlora-data beside this executable, or else in PATH.
StatusOr<std::string> findConverter();

/// What qlora-data left out or cut, from the file's metadata; empty when it
/// kept everything.
StatusOr<std::string> conversionNote(const std::string &rowsPath);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_TOKENCACHE_H
