// SPDX-License-Identifier: MIT

// The keys of a GGUF file that replace config.json.

#ifndef QLORA_FRONTEND_GGUFKEYS_H
#define QLORA_FRONTEND_GGUFKEYS_H

#include <vector>

#include "frontend/GgufFamilies.h"
#include "frontend/GgufModel.h"
#include "frontend/HfConfig.h"
#include "runtime/Gguf/GgufFile.h"

namespace qlora {

/// Returns `general.architecture`, and all keys that begin with the
/// architecture's name.
GgufMetadata ggufKeys(const ModelConfig &config, const GgufFamily &family);

/// Adds the tensors with factors of RoPE's wavelengths that llama3 and longrope
/// have.
void addRopeFactors(const ModelConfig &config,
                    std::vector<GgufSource> &sources);

} // namespace qlora

#endif // QLORA_FRONTEND_GGUFKEYS_H
