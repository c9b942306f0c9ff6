// SPDX-License-Identifier: MIT

// Values that follow from config.json: defaults, and RoPE frequencies, which
// are compared with transformers 5.

#include "frontend/HfConfig.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

using namespace qlora;

namespace {

constexpr const char *kLlama = R"("architectures": ["LlamaForCausalLM"],
  "vocab_size": 256, "hidden_size": 64, "intermediate_size": 176,
  "num_hidden_layers": 2, "num_attention_heads": 4)";

ModelConfig parse(const std::string &extra) {
  StatusOr<ModelConfig> config =
      parseHfConfig("{" + std::string(kLlama) + extra + "}");
  EXPECT_TRUE(config.isOk()) << config.status().message();
  return config.isOk() ? *config : ModelConfig();
}

/// Expects equal frequencies up to 1 ulp, because PyTorch's pow differs from
/// the C library's.
void expectFrequencies(const ModelConfig &config,
                       const std::vector<float> &expected) {
  ASSERT_EQ(config.rotaries.size(), 1u);
  const std::vector<float> &found = config.rotaries.front().frequencies;
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const float ulp = std::nextafter(expected[i], 2.0f) - expected[i];
    EXPECT_NEAR(found[i], expected[i], ulp) << "frequency " << i;
  }
}

TEST(HfConfigTest, FillsInDefaults) {
  const ModelConfig config = parse("");
  EXPECT_EQ(config.kvHeads, 4);
  EXPECT_EQ(config.headDim, 16);
  EXPECT_EQ(config.normEpsilon, 1e-6);
  EXPECT_EQ(config.windows, (std::vector<int64_t>{0, 0}));
  EXPECT_FALSE(config.tied || config.qkvBias || config.outputBias ||
               config.mlpBias || config.storedFormat);
  EXPECT_TRUE(config.warnings.empty());
}

TEST(HfConfigTest, TakesNullForMissing) {
  const ModelConfig config = parse(R"(, "head_dim": null,
      "num_key_value_heads": null, "rope_scaling": null,
      "sliding_window": null, "quantization_config": null)");
  EXPECT_EQ(config.kvHeads, 4);
  EXPECT_EQ(config.headDim, 16);
}

/// paddingToken is the row that torch.nn.Embedding(vocab, width, pad_token_id)
/// does not train, or -1.
TEST(HfConfigTest, KnowsTheRowOfPadding) {
  EXPECT_EQ(parse("").paddingToken, -1);
  EXPECT_EQ(parse(R"(, "pad_token_id": null)").paddingToken, -1);
  EXPECT_EQ(parse(R"(, "pad_token_id": 3)").paddingToken, 3);
  EXPECT_EQ(parse(R"(, "pad_token_id": -1)").paddingToken, 255);
  EXPECT_EQ(parse(R"(, "pad_token_id": 256)").paddingToken, -1);
  EXPECT_EQ(parse(R"(, "pad_token_id": -257)").paddingToken, -1);
}

TEST(HfConfigTest, RopeDefault) {
  const std::vector<float> expected = {
      1.0f,           0.316227764f,   0.100000001f,   0.0316227786f,
      0.00999999978f, 0.00316227786f, 0.00100000005f, 0.000316227786f};
  expectFrequencies(parse(""), expected);
  expectFrequencies(parse(R"(, "rope_theta": 10000)"), expected);
  expectFrequencies(parse(R"(, "rope_theta": 500.0, "rope_parameters":
      {"rope_type": "default", "rope_theta": 10000.0})"),
                    expected);
}

TEST(HfConfigTest, RopeDefaultOfOddWidth) {
  expectFrequencies(
      parse(R"(, "head_dim": 10, "rope_theta": 1000000.0)"),
      {1.0f, 0.0630957335f, 0.00398107152f, 0.000251188554f, 1.58489293e-05f});
}

TEST(HfConfigTest, RopeLinear) {
  expectFrequencies(
      parse(R"(, "rope_scaling": {"type": "linear", "factor": 3.0})"),
      {0.333333343f, 0.105409257f, 0.0333333351f, 0.0105409259f, 0.00333333318f,
       0.00105409266f, 0.000333333359f, 0.000105409265f});
}

TEST(HfConfigTest, RopeLlama3) {
  expectFrequencies(
      parse(R"(, "max_position_embeddings": 131072, "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192})"),
      {1.0f, 0.193922758f, 0.0376060307f, 0.00729266508f, 0.000524846022f,
       3.42810235e-05f, 6.64786967e-06f, 1.28917316e-06f});
}

TEST(HfConfigTest, RopeLlama3WithOtherFactors) {
  expectFrequencies(
      parse(R"(, "head_dim": 20, "max_position_embeddings": 131072,
        "rope_parameters": {"rope_type": "llama3", "factor": 32.0,
        "rope_theta": 300000.0, "low_freq_factor": 1.5,
        "high_freq_factor": 6.0, "original_max_position_embeddings": 256})"),
      {1.0f, 0.283326924f, 0.0331078283f, 0.000710744644f, 0.000201373114f,
       5.70544362e-05f, 1.61650532e-05f, 4.57999704e-06f, 1.29763623e-06f,
       3.67655474e-07f});
}

TEST(HfConfigTest, RefusesFrequenciesThatAreNotNumbers) {
  const std::string text =
      "{" + std::string(kLlama) +
      R"(, "rope_scaling": {"type": "linear", "factor": 1e-300}})";
  EXPECT_FALSE(parseHfConfig(text).isOk());
}

TEST(HfConfigTest, RefusesValuesOfTheWrongType) {
  for (const char *extra :
       {R"(, "head_dim": "16")", R"(, "head_dim": 16.0)",
        R"(, "rms_norm_eps": -1)", R"(, "rms_norm_eps": "1e-5")",
        R"(, "tie_word_embeddings": 1)", R"(, "layer_types": [1, 2])",
        R"(, "layer_types": "full_attention")", R"(, "rope_scaling": 2)",
        R"(, "rope_scaling": {"type": 3})", R"(, "head_dim": 15)",
        R"(, "quantization_config": [])", R"(, "architectures": {})"})
    EXPECT_FALSE(parseHfConfig("{" + std::string(kLlama) + extra + "}").isOk())
        << extra;
  for (const char *text : {"", "[]", "null", "{", "\xff"})
    EXPECT_FALSE(parseHfConfig(text).isOk()) << text;
}

} // namespace
