// SPDX-License-Identifier: MIT

// What the readers of stored formats share (StoredTensors.cpp has the table).

#ifndef QLORA_RUNTIME_WEIGHTS_STOREDREADERS_H
#define QLORA_RUNTIME_WEIGHTS_STOREDREADERS_H

#include "runtime/Weights/StoredTensors.h"

namespace qlora {

template <typename... Args>
Status damaged(fmt::format_string<Args...> format, Args &&...args) {
  return Status::error(StatusCode::kDataLoss, format,
                       std::forward<Args>(args)...);
}

/// "a.q_proj.weight" -> "a.q_proj".
std::string moduleOfWeight(const std::string &weight);

/// FP8 with the scales of blocks, of rows or of the whole (StoredFp8.cpp).
Status describeFp8(const ModelFiles &model, const std::string &weight,
                   const StoredFormat &format, StoredDescription &result);

/// GPTQ's and AWQ's integers with zero points (StoredIntegers.cpp).
Status describeIntegers(const ModelFiles &model, const std::string &weight,
                        const StoredFormat &format, StoredDescription &result);

/// How an element of scales is read, of F32, BF16 or F16, which are exact in
/// f32; or a refusal.
using LoadScale = float (*)(const void *scales, int64_t index);
StatusOr<LoadScale> scaleLoader(const ModelFiles::Entry &scales);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_STOREDREADERS_H
