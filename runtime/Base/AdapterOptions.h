// SPDX-License-Identifier: MIT

// Constraints between the options of adapters.

#ifndef QLORA_RUNTIME_BASE_ADAPTEROPTIONS_H
#define QLORA_RUNTIME_BASE_ADAPTEROPTIONS_H

#include <string_view>

#include "runtime/Base/Options.h"

namespace qlora {

/// Whether this init_lora_weights starts A and B at factors of their weight.
bool startsAtFactors(std::string_view init);

/// Whether the base then becomes the residual, the weight minus these factors.
bool leavesResidual(std::string_view init);

/// Rejects combinations that PEFT does not have, and an alpha of 0.
Status validateAdapter(const Options &options);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_ADAPTEROPTIONS_H
