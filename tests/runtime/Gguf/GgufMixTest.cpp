// SPDX-License-Identifier: MIT

// The type of each tensor, compared with llama_model_quantize's choice for
// files of these sizes.

#include "runtime/Gguf/GgufMix.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

std::string_view typeOf(std::string_view mix, const GgufMixModel &model,
                        std::string_view name, std::vector<int64_t> shape) {
  return ggufTypeInfo(
             chooseGgufType(**findGgufMix(mix), model, name, shape))
      .name;
}

/// Llama 3.1 8B.
constexpr GgufMixModel kLlama = {.layers = 32, .hasOutput = true};

TEST(GgufMix, GivesMoreBitsToSomeLayers) {
  // More bits: of 32 layers the first and last four, and 6, 9, ..., 27.
  for (int layer = 0; layer < 32; ++layer) {
    const bool more = layer < 4 || layer >= 28 || (layer - 4) % 3 == 2;
    const std::string prefix = fmt::format("blk.{}.", layer);
    for (const char *name : {"attn_v.weight", "ffn_down.weight"}) {
      EXPECT_EQ(typeOf("q4_k_m", kLlama, prefix + name, {4096, 4096}),
                more ? "q6_K" : "q4_K");
      EXPECT_EQ(typeOf("q5_k_m", kLlama, prefix + name, {4096, 4096}),
                more ? "q6_K" : "q5_K");
      EXPECT_EQ(typeOf("q4_0", kLlama, prefix + name, {4096, 4096}), "q4_0");
    }
    for (const char *name : {"attn_q.weight", "attn_k.weight",
                             "attn_output.weight", "ffn_up.weight"})
      EXPECT_EQ(typeOf("q4_k_m", kLlama, prefix + name, {4096, 4096}),
                "q4_K");
  }
}

TEST(GgufMix, GivesTheHeadSixBits) {
  GgufMixModel tied = kLlama;
  tied.hasOutput = false;
  for (const char *mix : {"q4_0", "q4_k_m", "q5_k_m"}) {
    EXPECT_EQ(typeOf(mix, kLlama, "output.weight", {128256, 4096}), "q6_K");
    EXPECT_EQ(typeOf(mix, tied, "token_embd.weight", {128256, 4096}), "q6_K");
  }
  EXPECT_EQ(typeOf("q4_k_m", kLlama, "token_embd.weight", {128256, 4096}),
            "q4_K");
  EXPECT_EQ(typeOf("q8_0", kLlama, "output.weight", {128256, 4096}), "q8_0");
  // Without whole blocks of the mix's type.
  EXPECT_EQ(typeOf("q4_k_m", kLlama, "output.weight", {1000, 896}), "q8_0");
  // With whole blocks of 32, but not of 256.
  EXPECT_EQ(typeOf("q4_0", kLlama, "output.weight", {1000, 896}), "q8_0");
}

TEST(GgufMix, FallsBackToSmallerBlocks) {
  const std::vector<int64_t> odd = {10, 896}, odder = {10, 100};
  EXPECT_EQ(typeOf("q4_k_m", kLlama, "blk.5.attn_q.weight", odd), "q5_0");
  EXPECT_EQ(typeOf("q5_k_m", kLlama, "blk.5.attn_q.weight", odd), "q5_1");
  EXPECT_EQ(typeOf("q4_k_m", kLlama, "blk.0.attn_v.weight", odd), "q8_0");
  EXPECT_EQ(typeOf("q8_0", kLlama, "blk.5.attn_q.weight", odd), "q8_0");
  for (const char *mix : {"q4_0", "q4_k_m", "q5_k_m", "q8_0", "f16"})
    EXPECT_EQ(typeOf(mix, kLlama, "blk.5.attn_q.weight", odder), "f16");
  EXPECT_EQ(typeOf("bf16", kLlama, "blk.5.attn_q.weight", odder), "bf16");
}

TEST(GgufMix, KeepsSmallTensorsInF32) {
  for (const GgufMix &mix : ggufMixes()) {
    EXPECT_EQ(typeOf(mix.name, kLlama, "blk.0.attn_norm.weight", {4096}),
              "f32");
    EXPECT_EQ(typeOf(mix.name, kLlama, "blk.0.attn_q.bias", {4096}), "f32");
    EXPECT_EQ(
        typeOf(mix.name, kLlama, "blk.0.ffn_up_exps.bias", {8, 4096}), "f32");
    EXPECT_EQ(
        typeOf(mix.name, kLlama, "blk.0.ffn_gate_inp.weight", {8, 4096}),
        "f32");
    EXPECT_EQ(typeOf(mix.name, kLlama, "position_embd.weight", {1024, 768}),
              "f32");
  }
}

TEST(GgufMix, HasRulesForExpertsAndLargeModels) {
  const GgufMixModel mixtral = {.layers = 32, .experts = 8, .hasOutput = true};
  const std::vector<int64_t> shape = {1024, 4096};
  for (const char *mix : {"q4_0", "q4_k_m", "q5_k_m"})
    for (const char *name : {"blk.5.attn_v.weight", "blk.5.attn_k.weight"})
      EXPECT_EQ(typeOf(mix, mixtral, name, shape), "q8_0");
  EXPECT_EQ(typeOf("q4_k_m", mixtral, "blk.5.attn_output.weight", shape),
            "q5_K");
  EXPECT_EQ(typeOf("q5_k_m", mixtral, "blk.5.attn_output.weight", shape),
            "q5_K");
  EXPECT_EQ(typeOf("q4_k_m", mixtral, "blk.6.ffn_down_exps.weight", shape),
            "q6_K");
  const GgufMixModel large = {.layers = 80, .hasOutput = true, .is70B = true};
  EXPECT_EQ(typeOf("q4_k_m", large, "blk.11.attn_v.weight", shape), "q5_K");
  EXPECT_EQ(typeOf("q4_k_m", large, "blk.12.attn_v.weight", shape), "q6_K");
  EXPECT_EQ(typeOf("q4_k_m", large, "blk.11.attn_k.weight", shape), "q4_K");
}

TEST(GgufMix, RefusesUnknownTypes) {
  const auto mix = findGgufMix("q3_k_s");
  EXPECT_NE(mix.status().message().find("--outtype q3_k_s"),
            std::string::npos);
  EXPECT_NE(mix.status().message().find("q4_k_m"), std::string::npos);
}

} // namespace
} // namespace qlora
