// SPDX-License-Identifier: MIT

// What differs from layer to layer of a model, as its config.json has it:
// windows of attention, and how positions turn queries and keys.

#ifndef QLORA_FRONTEND_CONFIGLAYERS_H
#define QLORA_FRONTEND_CONFIGLAYERS_H

#include "frontend/HfConfig.h"
#include "frontend/JsonFields.h"

namespace qlora {

/// Fills `windows`, `rotaries` and `rotaryOfLayer` of `config`, which has its
/// sizes already.
Status readLayers(const nlohmann::json &root, ModelConfig &config);

} // namespace qlora

#endif // QLORA_FRONTEND_CONFIGLAYERS_H
