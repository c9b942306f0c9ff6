// SPDX-License-Identifier: MIT

// Constraints between the options of adapters.

#ifndef QLORA_RUNTIME_OPTIONS_ADAPTEROPTIONS_H
#define QLORA_RUNTIME_OPTIONS_ADAPTEROPTIONS_H

#include <string_view>

#include "runtime/Options/Options.h"

namespace qlora {

/// Whether this value of init_lora_weights computes the initial A and B from
/// the base weight: PiSSA, OLoRA, LoftQ.
bool startsAtFactors(std::string_view init);

/// Whether this value of init_lora_weights subtracts the initial B A from the
/// base weight: PiSSA and OLoRA, but not LoftQ.
bool leavesResidual(std::string_view init);

/// Returns the first option by which an adapter is more than LoRA of modules,
/// such as DoRA; empty if there is none.
std::string_view beyondPlainLora(const Options &options);

/// Refuses adapter options that PEFT cannot combine, and a lora_alpha of 0.
Status validateAdapter(const Options &options);

} // namespace qlora

#endif // QLORA_RUNTIME_OPTIONS_ADAPTEROPTIONS_H
