// SPDX-License-Identifier: MIT

#include "frontend/ModelIdentity.h"

#include <gtest/gtest.h>

using namespace qlora;
using json = nlohmann::ordered_json;

namespace {

json describe(const std::string &architecture, const std::string &extra = "") {
  StatusOr<ModelConfig> config = parseHfConfig(
      R"({"architectures": [")" + architecture + R"("], "vocab_size": 256,
      "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 6,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16)" +
      extra + "}");
  EXPECT_TRUE(config.isOk()) << config.status().message();
  return config.isOk() ? describeArithmetic(*config) : json();
}

json describeLlama(const std::string &extra = "") {
  return describe("LlamaForCausalLM", extra);
}

TEST(ModelIdentityTest, SpellingsOfOneModelAreOne) {
  EXPECT_EQ(describeLlama(), describeLlama(R"(, "rope_theta": 10000,
      "rope_scaling": null, "mlp_bias": false, "torch_dtype": "float32",
      "tie_word_embeddings": false, "rms_norm_eps": 0.000001)"));
  EXPECT_EQ(describeLlama(R"(, "rope_theta": 500000, "rope_scaling":
      {"type": "linear", "factor": 4}, "dtype": "bfloat16")"),
            describeLlama(R"(, "rope_parameters": {"rope_type": "linear",
      "rope_theta": 500000.0, "factor": 4.0})"));
}

TEST(ModelIdentityTest, WhatChangesNumbersChangesIt) {
  const json base = describeLlama();
  for (const char *extra :
       {R"(, "rope_theta": 500000)", R"(, "rms_norm_eps": 1e-5)",
        R"(, "attention_bias": true)", R"(, "mlp_bias": true)",
        R"(, "tie_word_embeddings": true)",
        R"(, "rope_scaling": {"type": "linear", "factor": 2})",
        R"(, "quantization_config": {"load_in_4bit": true,
             "bnb_4bit_quant_type": "nf4"})"})
    EXPECT_NE(base, describeLlama(extra)) << extra;
  EXPECT_EQ(describe("Qwen2ForCausalLM")["attention_bias"], "q, k, v");
  EXPECT_EQ(describe("Qwen3ForCausalLM")["qk_norm"], true);
  EXPECT_EQ(describe("Qwen3ForCausalLM", R"(, "attention_bias": true)")
                ["attention_bias"],
            "q, k, v, o");
}

TEST(ModelIdentityTest, NamesLayersWithAWindow) {
  EXPECT_TRUE(describeLlama()["sliding_window"].is_null());
  const json all = describe("MistralForCausalLM", R"(, "sliding_window": 12)");
  EXPECT_EQ(all["sliding_window"], 12);
  EXPECT_EQ(all["sliding_layers"], "all");
  const json some = describe("Qwen2ForCausalLM", R"(, "sliding_window": 7,
      "use_sliding_window": true, "layer_types": ["sliding_attention",
      "full_attention", "full_attention", "sliding_attention",
      "sliding_attention", "sliding_attention"])");
  EXPECT_EQ(some["sliding_layers"], "0, 3-5");
}

/// The description is recorded with the options, so no key may be an option.
TEST(ModelIdentityTest, NoKeyIsAnOption) {
  const json description = describeLlama();
  for (const auto &[key, value] : description.items())
    EXPECT_EQ(findOption(optionTable(), key), nullptr) << key;
}

} // namespace
