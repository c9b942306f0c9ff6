// SPDX-License-Identifier: MIT

// One frozen weight, whole: copied, converted, quantised, or as its file has
// it.

#ifndef QLORA_RUNTIME_WEIGHTS_FROZENPARAMETER_H
#define QLORA_RUNTIME_WEIGHTS_FROZENPARAMETER_H

#include "runtime/Weights/ArenaSink.h"
#include "runtime/Weights/Parameters.h"

namespace qlora {

/// Fills the bytes of the parameter at its offset; not of a slice.
Status fillFrozenParameter(const ParameterSources &sources,
                           const qlora_parameter &parameter, ArenaSink &arena);

/// What the recorded factors take from it; null: nothing.
inline const WeightFactors *factorsOf(const ParameterSources &sources,
                                      const qlora_parameter &parameter) {
  return sources.factors ? sources.factors->ofBase(parameter) : nullptr;
}

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_FROZENPARAMETER_H
