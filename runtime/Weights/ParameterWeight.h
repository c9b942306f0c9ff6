// SPDX-License-Identifier: MIT

// The weight of the model that a parameter names, as numbers of its file, and
// its way into an arena where it is only copied or converted.

#ifndef QLORA_RUNTIME_WEIGHTS_PARAMETERWEIGHT_H
#define QLORA_RUNTIME_WEIGHTS_PARAMETERWEIGHT_H

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/Weights/ArenaSink.h"
#include "runtime/Weights/FileWeight.h"
#include "runtime/Weights/Parameters.h"

namespace qlora {

inline std::span<const int64_t> shapeOf(const qlora_parameter &parameter) {
  return {parameter.shape, parameter.rank};
}
inline bool isTurned(const qlora_parameter &parameter) {
  return parameter.quantization == QLORA_QUANTIZATION_TURNED;
}
/// As its file has it.
std::vector<int64_t> shapeInFile(const qlora_parameter &parameter);
int64_t elementsOf(const qlora_parameter &parameter);
/// Of a quantised one.
inline StoredLayout layoutOf(const qlora_parameter &parameter) {
  return StoredLayout::of(static_cast<qlora_dtype>(parameter.format),
                          elementsOf(parameter), parameter.block,
                          parameter.double_quant == 1);
}

/// The weight of the model folder that a parameter names, or its parts.
StatusOr<StackedFileWeight> findWeight(const ParameterSources &sources,
                                       const qlora_parameter &parameter);

/// Elements [begin, end) of a parameter.
struct ElementRange {
  int64_t begin, end;
};

/// Reads these of a weight, window by window, to the place of the parameter.
/// `factors`, where there are any, are subtracted from what is read.
Status copyWeight(const StackedFileWeight &weight, const qlora_parameter &parameter,
                  ElementRange range, ArenaSink &arena,
                  const WeightFactors *factors = nullptr);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_PARAMETERWEIGHT_H
