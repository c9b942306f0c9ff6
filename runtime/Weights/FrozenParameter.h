// SPDX-License-Identifier: MIT

// Fills one frozen weight that is not a slice. The weight is copied,
// converted, quantized, or kept in the quantized format of its file.

#ifndef QLORA_RUNTIME_WEIGHTS_FROZENPARAMETER_H
#define QLORA_RUNTIME_WEIGHTS_FROZENPARAMETER_H

#include "runtime/Weights/ArenaSink.h"
#include "runtime/Weights/Parameters.h"

namespace qlora {

/// Fills the parameter in `arena`. Not for slices.
Status fillFrozenParameter(const ParameterSources &sources,
                           const qlora_parameter &parameter, ArenaSink &arena);

/// Returns the initial LoRA factors to subtract from the weight, or null.
inline const WeightFactors *factorsOf(const ParameterSources &sources,
                                      const qlora_parameter &parameter) {
  return sources.factors ? sources.factors->ofBase(parameter) : nullptr;
}

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_FROZENPARAMETER_H
