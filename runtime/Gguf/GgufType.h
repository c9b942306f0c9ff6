// SPDX-License-Identifier: MIT

// The element types of GGUF files that the writer knows. A quantized type
// stores blocks of consecutive values of a row; a row has whole blocks. The
// layouts are llama.cpp's; GgufBlocks.h describes them.

#ifndef QLORA_RUNTIME_GGUF_GGUFTYPE_H
#define QLORA_RUNTIME_GGUF_GGUFTYPE_H

#include <cstdint>
#include <span>
#include <string_view>

namespace qlora {

/// The values are the type's numbers in files.
enum class GgufType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

struct GgufTypeInfo {
  GgufType type;
  std::string_view name; ///< llama.cpp's, such as "q4_K"
  int64_t blockValues;
  int64_t blockBytes;
  /// Largest magnitude that every block can represent without overflow of its
  /// scales.
  float largest;
};

const GgufTypeInfo &ggufTypeInfo(GgufType type);
std::span<const GgufTypeInfo> ggufTypes();

/// Returns the bytes of `count` values, which are whole blocks.
int64_t ggufBytes(GgufType type, int64_t count);

} // namespace qlora

#endif // QLORA_RUNTIME_GGUF_GGUFTYPE_H
