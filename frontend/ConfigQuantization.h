// SPDX-License-Identifier: MIT

// How a model's files store their weights, according to config.json.

#ifndef QLORA_FRONTEND_CONFIGQUANTIZATION_H
#define QLORA_FRONTEND_CONFIGQUANTIZATION_H

#include "frontend/HfConfig.h"
#include "frontend/JsonFields.h"

namespace qlora {

/// Fills `storedFormat` and `unquantizedModules` of `config` from
/// `quantization_config`; an unknown method is refused by name.
Status readQuantization(const JsonFields &fields, ModelConfig &config);

} // namespace qlora

#endif // QLORA_FRONTEND_CONFIGQUANTIZATION_H
