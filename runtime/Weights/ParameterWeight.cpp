// SPDX-License-Identifier: MIT

// Finds weights, and copies them window by window.

#include "runtime/Weights/ParameterWeight.h"

#include "runtime/Weights/ConvertWeights.h"

#include <algorithm>

namespace qlora {

static constexpr int64_t kReadElements = int64_t{1} << 22;

std::vector<int64_t> shapeInFile(const qlora_parameter &parameter) {
  const auto shape = shapeOf(parameter);
  if (isTransposed(parameter))
    return {shape.rbegin(), shape.rend()};
  return {shape.begin(), shape.end()};
}

int64_t elementsOf(const qlora_parameter &parameter) {
  int64_t elements = 1;
  for (int64_t extent : shapeOf(parameter))
    elements *= extent;
  return elements;
}

StatusOr<StackedFileWeight> findWeight(const ParameterSources &sources,
                                       const qlora_parameter &parameter) {
  if (parameter.parts != 0)
    return StackedFileWeight::find(sources.model, parameter);
  QLORA_ASSIGN_OR_RETURN(
      const FileWeight weight,
      FileWeight::find(sources.model, parameter.name, shapeInFile(parameter),
                       static_cast<qlora_dtype>(parameter.file_dtype)));
  return StackedFileWeight{{weight}, elementsOf(parameter)};
}

Status copyWeight(const StackedFileWeight &weight,
                  const qlora_parameter &parameter, ElementRange range,
                  ArenaSink &arena, const WeightFactors *factors) {
  const auto type = static_cast<qlora_dtype>(parameter.dtype);
  const int64_t size = weightBytes(type),
                fileSize = weightBytes(weight.dtype());
  for (int64_t first = range.begin; first < range.end; first += kReadElements) {
    const int64_t count = std::min(kReadElements, range.end - first);
    const auto bytes = static_cast<size_t>(count * fileSize);
    const auto offset = static_cast<uint64_t>((first - range.begin) * size);
    uint8_t *const out =
        arena
            .map(parameter.offset + offset, static_cast<uint64_t>(count * size))
            .data();
    std::span<uint8_t> read(out, bytes);
    if (weight.dtype() != type) {
      QLORA_ASSIGN_OR_RETURN(const auto window, arena.window(bytes));
      read = window.first(bytes);
    }
    QLORA_RETURN_IF_ERROR(weight.read(first, read));
    if (factors)
      factors->subtractFrom(first, weight.dtype(), read);
    if (weight.dtype() != type)
      convertWeights(weight.dtype(), read.data(), type, out, count);
    QLORA_RETURN_IF_ERROR(arena.commit());
  }
  return Status::ok();
}

} // namespace qlora
