// SPDX-License-Identifier: MIT

// Properties that differ between layers, from config.json: attention windows
// and rotary positions.

#ifndef QLORA_FRONTEND_CONFIGLAYERS_H
#define QLORA_FRONTEND_CONFIGLAYERS_H

#include "frontend/HfConfig.h"
#include "frontend/JsonFields.h"

namespace qlora {

/// Fills `windows`, `rotaries` and `rotaryOfLayer` of `config`. The sizes in
/// `config` must be set.
Status readLayers(const nlohmann::json &root, ModelConfig &config);

} // namespace qlora

#endif // QLORA_FRONTEND_CONFIGLAYERS_H
