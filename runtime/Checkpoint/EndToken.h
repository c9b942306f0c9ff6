// SPDX-License-Identifier: MIT

// Names the end token of --eos-token in the files of a result, as transformers'
// Trainer and save_pretrained do.

#ifndef QLORA_RUNTIME_CHECKPOINT_ENDTOKEN_H
#define QLORA_RUNTIME_CHECKPOINT_ENDTOKEN_H

#include <string>

#include "runtime/Base/AtomicFile.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Changes the tokenizer's files in `folder`, and the ids in config.json and
/// generation_config.json if it has these. Does nothing if `token` is empty.
Status writeEndToken(const std::string &token, const std::string &folder,
                     AtomicFile::Flush flush);

} // namespace qlora

#endif // QLORA_RUNTIME_CHECKPOINT_ENDTOKEN_H
