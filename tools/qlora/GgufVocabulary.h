// SPDX-License-Identifier: MIT

// The tokenizer of a model as keys of a GGUF file, and ollama's Modelfile. Both
// come from `qlora-data gguf`.

#ifndef QLORA_TOOLS_QLORA_GGUFVOCABULARY_H
#define QLORA_TOOLS_QLORA_GGUFVOCABULARY_H

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Gguf/GgufFile.h"
#include "tools/qlora/ExportJob.h"

namespace qlora {

struct GgufVocabulary {
  GgufMetadata keys;
  std::vector<std::string> warnings;
  bool isThere = false;  ///< false: the folders have no tokenizer
  std::string modelfile; ///< for ollama, if it was requested
};

/// Reads the tokenizer of the adapter, else of the base. `size`: rows of the
/// embedding. `modelfileFor`: name of a GGUF file that the Modelfile is for;
/// empty: none. A model without a tokenizer gets the keys of an empty one.
StatusOr<GgufVocabulary> readVocabulary(const ExportJob &job, int64_t size,
                                        const std::string &modelfileFor);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_GGUFVOCABULARY_H
