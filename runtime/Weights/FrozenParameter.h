// SPDX-License-Identifier: MIT

// Fills one frozen weight that is not a tp or ep shard: copied, converted,
// quantized, or in the stored format of its file.

#ifndef QLORA_RUNTIME_WEIGHTS_FROZENPARAMETER_H
#define QLORA_RUNTIME_WEIGHTS_FROZENPARAMETER_H

#include "runtime/Weights/ArenaSink.h"
#include "runtime/Weights/Parameters.h"

namespace qlora {

/// Fills the bytes of the parameter at its offset. Not for tp or ep shards.
Status fillFrozenParameter(const ParameterSources &sources,
                           const qlora_parameter &parameter, ArenaSink &arena);

/// Returns the LoRA start factors that are subtracted from the weight, or null.
inline const WeightFactors *factorsOf(const ParameterSources &sources,
                                      const qlora_parameter &parameter) {
  return sources.factors ? sources.factors->ofBase(parameter) : nullptr;
}

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_FROZENPARAMETER_H
