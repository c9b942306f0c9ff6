// SPDX-License-Identifier: MIT

// Which tensor of a model gets which type, for each `--outtype`. The rules are
// llama.cpp's (llama_tensor_get_type in llama-quant.cpp, without an importance
// matrix), so that a file has the size and quality that its name promises:
//
//   tensor                      q4_0    q4_k_m          q5_k_m
//   output, or a tied embedding q6_K    q6_K            q6_K
//   attn_v, attn_qkv, ffn_down  q4_0    q4_K, or q6_K   q5_K, or q6_K
//     (ffn_down also of experts)        in some layers  in some layers
//   other matrices              q4_0    q4_K            q5_K
//
// With exactly 8 experts, attn_k and attn_v are q8_0, and attn_output of q4_k_m
// is q5_K. In models of 80 layers with grouped queries, attn_v of q4_k_m is at
// least q5_K. Norms, biases, routers and learned positions are f32.
//
// If a row has no whole blocks, another type takes the place: q5_0 for q4_K,
// q5_1 for q5_K, q8_0 for q6_K, and f16 for all if 32 does not divide the row.

#ifndef QLORA_RUNTIME_GGUF_GGUFMIX_H
#define QLORA_RUNTIME_GGUF_GGUFMIX_H

#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/Base/Status.h"
#include "runtime/Gguf/GgufFile.h"

namespace qlora {

/// A value of --outtype.
struct GgufMix {
  std::string_view name;
  GgufType type;     ///< of most matrices
  bool isMixed;      ///< rules for some tensors, as above
  uint32_t fileType; ///< `general.file_type`
};

std::span<const GgufMix> ggufMixes();
StatusOr<const GgufMix *> findGgufMix(std::string_view name);

/// What the rules look at, apart from the tensor.
struct GgufMixModel {
  int64_t layers = 0;
  int64_t experts = 0;
  /// The LM head has values of its own; else the embedding gets its type.
  bool hasOutput = false;
  /// llama.cpp's models of 70B: 80 layers, fewer heads for keys than queries.
  bool is70B = false;
};

/// Returns the type for the tensor with this name and shape.
GgufType chooseGgufType(const GgufMix &mix, const GgufMixModel &model,
                        std::string_view name, std::span<const int64_t> shape);

} // namespace qlora

#endif // QLORA_RUNTIME_GGUF_GGUFMIX_H
