// SPDX-License-Identifier: MIT

// What the options of an adapter say of each other.

#ifndef QLORA_RUNTIME_BASE_ADAPTEROPTIONS_H
#define QLORA_RUNTIME_BASE_ADAPTEROPTIONS_H

#include <string_view>

#include "runtime/Base/Options.h"

namespace qlora {

/// Of init_lora_weights: A and B start as factors of the weight beside them.
bool startsAtFactors(std::string_view init);

/// And what is left of the weight is the base.
bool leavesResidual(std::string_view init);

/// What PEFT has for modules, and not for each other or for all of them.
Status validateAdapter(const Options &options);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_ADAPTEROPTIONS_H
