// SPDX-License-Identifier: MIT

// Readers of the formats of quantized weights. StoredTensors.cpp selects one.

#ifndef QLORA_RUNTIME_WEIGHTS_STOREDREADERS_H
#define QLORA_RUNTIME_WEIGHTS_STOREDREADERS_H

#include "runtime/Weights/StoredTensors.h"

namespace qlora {

template <typename... Args>
Status damaged(fmt::format_string<Args...> format, Args &&...args) {
  return Status::dataLoss(format, std::forward<Args>(args)...);
}

/// Removes the last name: "a.q_proj" for "a.q_proj.weight".
std::string moduleOfWeight(const std::string &weight);

/// Describes FP8 weights with scales per tile, row or tensor (StoredFp8.cpp).
Status describeFp8(const ModelFiles &model, const std::string &weight,
                   const StoredFormat &format, StoredDescription &result);

/// Describes GPTQ and AWQ weights with zero points (StoredIntegers.cpp).
Status describeIntegers(const ModelFiles &model, const std::string &weight,
                        const StoredFormat &format, StoredDescription &result);

/// Reads one F32, BF16 or F16 scale as f32, which is exact. scaleLoader()
/// returns an error for other types.
using LoadScale = float (*)(const void *scales, int64_t index);
StatusOr<LoadScale> scaleLoader(const ModelFiles::Entry &scales);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_STOREDREADERS_H
