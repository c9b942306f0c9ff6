// SPDX-License-Identifier: MIT

// Writes the tensors of a GGUF file from those of a Hugging Face folder, a
// window at a time. The values come from a function, so that they may be those
// of a folder, or be merged with an adapter while they are read.

#ifndef QLORA_FRONTEND_GGUFDATA_H
#define QLORA_FRONTEND_GGUFDATA_H

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "frontend/GgufModel.h"
#include "runtime/Base/Status.h"
#include "runtime/Gguf/GgufFile.h"

namespace qlora {

/// Fills `out` with a tensor's values from element `first` on, row-major.
using ReadValues = std::function<Status(int64_t first, std::span<float> out)>;
/// Opens a tensor of the folder. Its shape is the one in DecoderWeights.
using OpenTensor = std::function<StatusOr<ReadValues>(const std::string &name)>;

/// Values that are in memory at a time, unless a matrix must be transposed: it
/// is read as a whole.
inline constexpr int64_t kGgufWindow = int64_t{1} << 22;

/// Returns the largest number of f32 values that writeGgufData() holds.
int64_t ggufPeakValues(std::span<const GgufSource> sources);

/// Appends the data of all sources, in their order, to `writer`, which was
/// created with their tensors.
Status writeGgufData(std::span<const GgufSource> sources,
                     const OpenTensor &open, GgufWriter &writer);

} // namespace qlora

#endif // QLORA_FRONTEND_GGUFDATA_H
