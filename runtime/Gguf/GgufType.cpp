// SPDX-License-Identifier: MIT

// The table of GGUF's element types.

#include "runtime/Gguf/GgufType.h"

#include <algorithm>
#include <cassert>
#include <cfloat>

namespace qlora {

/// The largest finite values of f16 and bf16.
static constexpr float kF16 = 65504.0f, kBF16 = 0x1.FEp127f;

// The scales of blocks are f16, and the search may choose larger ones than the
// values need. Weights of models are far below the limit of blocks.
static constexpr float kBlock = kF16 / 2;

static constexpr GgufTypeInfo kTypes[] = {
    {GgufType::kF32, "f32", 1, 4, FLT_MAX},
    {GgufType::kF16, "f16", 1, 2, kF16},
    {GgufType::kQ4_0, "q4_0", 32, 18, kBlock},
    {GgufType::kQ5_0, "q5_0", 32, 22, kBlock},
    {GgufType::kQ5_1, "q5_1", 32, 24, kBlock},
    {GgufType::kQ8_0, "q8_0", 32, 34, kBlock},
    {GgufType::kQ4_K, "q4_K", 256, 144, kBlock},
    {GgufType::kQ5_K, "q5_K", 256, 176, kBlock},
    {GgufType::kQ6_K, "q6_K", 256, 210, kBlock},
    {GgufType::kBF16, "bf16", 1, 2, kBF16},
};

const GgufTypeInfo &ggufTypeInfo(GgufType type) {
  const auto found = std::ranges::find(kTypes, type, &GgufTypeInfo::type);
  assert(found != std::end(kTypes) && "no type of the table");
  return *found;
}

std::span<const GgufTypeInfo> ggufTypes() { return kTypes; }

int64_t ggufBytes(GgufType type, int64_t count) {
  const GgufTypeInfo &info = ggufTypeInfo(type);
  assert(count % info.blockValues == 0 && "rows have whole blocks");
  return count / info.blockValues * info.blockBytes;
}

} // namespace qlora
