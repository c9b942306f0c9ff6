// SPDX-License-Identifier: MIT

// Finds a parameter's weight in the model, and copies it into an arena.

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
inline bool isTransposed(const qlora_parameter &parameter) {
  return parameter.quantization == QLORA_QUANTIZATION_TURNED;
}
/// Returns the shape of the parameter's tensor in the file.
std::vector<int64_t> shapeInFile(const qlora_parameter &parameter);
int64_t elementsOf(const qlora_parameter &parameter);
inline StoredLayout layoutOf(const qlora_parameter &parameter) {
  return StoredLayout::of(static_cast<qlora_dtype>(parameter.format),
                          elementsOf(parameter), parameter.block,
                          parameter.double_quant == 1);
}

/// Finds the parameter's weight, or its `parts`, in the model folder.
StatusOr<StackedFileWeight> findWeight(const ParameterSources &sources,
                                       const qlora_parameter &parameter);

/// Elements [begin, end) of a parameter.
struct ElementRange {
  int64_t begin, end;
};

/// Copies elements `range` of a weight to the parameter's offset in the arena,
/// window by window. Subtracts the product of `factors` unless null.
Status copyWeight(const StackedFileWeight &weight,
                  const qlora_parameter &parameter, ElementRange range,
                  ArenaSink &arena, const WeightFactors *factors = nullptr);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_PARAMETERWEIGHT_H
