// SPDX-License-Identifier: MIT

// Adapters merged into tensors. All numbers are exact in f32.

#include "runtime/Export/MergedModel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/runtime/Export/SmallModel.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using MergedModelTest = SmallModel;

/// r 2 and alpha 4, so the scale is 2.
constexpr const char *kPlain =
    R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4})";

TEST_F(MergedModelTest, AddsTheScaledProduct) {
  addBase("model.l.0.q.weight", {2, 3}, {1, 2, 3, 4, 5, 6});
  addBase("model.norm.weight", {3}, {7, 8, 9});
  addAdapter("model.l.0.q.lora_A.weight", {2, 3}, {1, 0, 2, 0, 1, 1});
  addAdapter("model.l.0.q.lora_B.weight", {2, 2}, {1, 2, 3, 0});
  auto model = merge(kPlain);
  ASSERT_TRUE(model.isOk()) << model.status().message();
  // B A = [[1, 2, 4], [3, 0, 6]].
  EXPECT_THAT(valuesOf(*model, "model.l.0.q.weight"),
              ElementsAre(3, 6, 11, 10, 5, 18));
  EXPECT_THAT(valuesOf(*model, "model.norm.weight"), ElementsAre(7, 8, 9));
  EXPECT_TRUE(model->find("model.l.0.q.weight")->isAdapted);
  EXPECT_FALSE(model->find("model.norm.weight")->isAdapted);
}

TEST_F(MergedModelTest, UsesPatternsAndRsLora) {
  for (const char *name : {"q", "k"}) {
    addBase(fmt::format("model.{}.weight", name), {1, 1}, {0});
    addAdapter(fmt::format("model.{}.lora_A.weight", name), {4, 1},
               {1, 1, 1, 1});
    addAdapter(fmt::format("model.{}.lora_B.weight", name), {1, 4},
               {1, 1, 1, 1});
  }
  auto model = merge(R"({"r": 4, "lora_alpha": 4, "use_rslora": true,
                         "alpha_pattern": {"k": 6}})");
  ASSERT_TRUE(model.isOk()) << model.status().message();
  // Scales 4 / sqrt(4) and 6 / sqrt(4).
  EXPECT_THAT(valuesOf(*model, "model.q.weight"), ElementsAre(8));
  EXPECT_THAT(valuesOf(*model, "model.k.weight"), ElementsAre(12));
}

TEST_F(MergedModelTest, TransposesConv1D) {
  addBase("h.0.c.weight", {3, 2}, {1, 4, 2, 5, 3, 6});
  addAdapter("transformer.h.0.c.lora_A.weight", {2, 3}, {1, 0, 2, 0, 1, 1});
  addAdapter("transformer.h.0.c.lora_B.weight", {2, 2}, {1, 2, 3, 0});
  BaseForm form;
  form.linearsAreInOut = true;
  auto model = merge(kPlain, form);
  ASSERT_TRUE(model.isOk()) << model.status().message();
  EXPECT_THAT(valuesOf(*model, "h.0.c.weight"),
              ElementsAre(3, 10, 6, 5, 11, 18));
}

TEST_F(MergedModelTest, MergesEmbeddingsAndUntiesTheHead) {
  addBase("model.embed.weight", {3, 2}, {1, 2, 3, 4, 5, 6});
  addAdapter("model.embed.lora_embedding_A", {1, 3}, {1, 2, 3});
  addAdapter("model.embed.lora_embedding_B", {2, 1}, {1, -1});
  BaseForm form;
  form.tiedEmbedding = "model.embed.weight";
  form.tiedHead = "lm_head.weight";
  auto model = merge(R"({"r": 1, "lora_alpha": 1})", form,
                     R"({"tie_word_embeddings": true})");
  ASSERT_TRUE(model.isOk()) << model.status().message();
  EXPECT_TRUE(model->isUntied());
  EXPECT_THAT(valuesOf(*model, "model.embed.weight"),
              ElementsAre(2, 1, 5, 2, 8, 3));
  EXPECT_THAT(valuesOf(*model, "lm_head.weight"),
              ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(MergedModelTest, TrainedTokensStayTied) {
  addBase("model.embed.weight", {3, 2}, {1, 2, 3, 4, 5, 6});
  addBase("model.q.weight", {1, 1}, {1});
  addAdapter("model.embed.token_adapter.trainable_tokens_delta", {2, 2},
             {10, 20, 30, 40});
  addAdapter("model.q.lora_A.weight", {1, 1}, {1});
  addAdapter("model.q.lora_B.weight", {1, 1}, {1});
  BaseForm form;
  form.tiedEmbedding = "model.embed.weight";
  form.tiedHead = "lm_head.weight";
  auto model = merge(R"({"r": 1, "lora_alpha": 1,
                         "trainable_token_indices": [2, 0]})",
                     form);
  ASSERT_TRUE(model.isOk()) << model.status().message();
  EXPECT_FALSE(model->isUntied());
  EXPECT_THAT(valuesOf(*model, "model.embed.weight"),
              ElementsAre(30, 40, 3, 4, 10, 20));
}

TEST_F(MergedModelTest, ScalesByTheMagnitudeOfDora) {
  addBase("model.q.weight", {2, 2}, {3, 4, 0, 1});
  addAdapter("model.q.lora_A.weight", {1, 2}, {0, 1});
  addAdapter("model.q.lora_B.weight", {2, 1}, {0, 1});
  addAdapter("model.q.lora_magnitude_vector", {2}, {10, 8});
  auto model = merge(R"({"r": 1, "lora_alpha": 1, "use_dora": true})");
  ASSERT_TRUE(model.isOk()) << model.status().message();
  // W + B A = [[3, 4], [0, 2]] has the norms 5 and 2.
  EXPECT_THAT(valuesOf(*model, "model.q.weight"), ElementsAre(6, 8, 0, 8));
}

TEST_F(MergedModelTest, ReplacesSavedModulesAndAddsBiases) {
  addBase("model.q.weight", {1, 1}, {1});
  addBase("model.q.bias", {1}, {5});
  addBase("lm_head.weight", {1, 2}, {1, 2});
  addAdapter("model.q.lora_A.weight", {1, 1}, {1});
  addAdapter("model.q.lora_B.weight", {1, 1}, {1});
  addAdapter("model.q.lora_B.bias", {1}, {3});
  addAdapter("lm_head.weight", {1, 2}, {8, 9});
  auto model = merge(R"({"r": 1, "lora_alpha": 2, "lora_bias": true,
                         "modules_to_save": ["lm_head"]})");
  ASSERT_TRUE(model.isOk()) << model.status().message();
  EXPECT_THAT(valuesOf(*model, "model.q.bias"), ElementsAre(11));
  EXPECT_THAT(valuesOf(*model, "lm_head.weight"), ElementsAre(8, 9));
}

TEST_F(MergedModelTest, MergesExpertsThatAreStackedOrNot) {
  // Two experts, rank 1: A has a row and B a column for each.
  addBase("model.m.experts.gate_up_proj", {2, 2, 1}, {1, 2, 3, 4});
  addBase("model.f.experts.0.w2.weight", {1, 1}, {1});
  addBase("model.f.experts.1.w2.weight", {1, 1}, {2});
  addAdapter("model.m.experts.lora_A.weight", {2, 1}, {1, 10});
  addAdapter("model.m.experts.lora_B.weight", {2, 2}, {1, 2, 3, 4});
  auto model = merge(R"({"r": 1, "lora_alpha": 1,
                         "target_parameters": ["experts.gate_up_proj"]})");
  ASSERT_TRUE(model.isOk()) << model.status().message();
  EXPECT_THAT(valuesOf(*model, "model.m.experts.gate_up_proj"),
              ElementsAre(2, 5, 23, 44));

  adapter = SmallFile();
  addAdapter("model.g.experts.lora_A.weight", {2, 1}, {1, 10});
  addAdapter("model.g.experts.lora_B.weight", {1, 2}, {5, 6});
  BaseForm form;
  form.renamed = {{"g.experts", "f.experts"}};
  form.projections = {"w1", "w3", "w2"};
  model = merge(R"({"r": 1, "lora_alpha": 1,
                    "target_parameters": ["experts.down_proj"]})",
                form);
  ASSERT_TRUE(model.isOk()) << model.status().message();
  EXPECT_THAT(valuesOf(*model, "model.f.experts.0.w2.weight"), ElementsAre(6));
  EXPECT_THAT(valuesOf(*model, "model.f.experts.1.w2.weight"),
              ElementsAre(62));
}

TEST_F(MergedModelTest, RefusesAdaptersThatDoNotFit) {
  addBase("model.q.weight", {2, 3}, {1, 2, 3, 4, 5, 6});
  const auto refused = [&](const char *config = kPlain) {
    auto model = merge(config);
    adapter = SmallFile();
    return model.isOk() ? std::string() : model.status().message();
  };
  const std::vector<float> six(6);
  addAdapter("model.q.lora_A.weight", {2, 3}, six);
  EXPECT_THAT(refused(), HasSubstr("lacks its other matrix"));
  addAdapter("model.q.lora_A.weight", {3, 2}, six);
  addAdapter("model.q.lora_B.weight", {2, 3}, six);
  EXPECT_THAT(refused(), HasSubstr("has shape [3, 2], but the base's "
                                   "'model.q.weight' needs [3, 3]"));
  addAdapter("model.z.lora_A.weight", {2, 3}, six);
  addAdapter("model.z.lora_B.weight", {3, 2}, six);
  EXPECT_THAT(refused(), HasSubstr("needs 'model.z.weight'"));
  addAdapter("model.q.lora_A.weight", {2, 3}, {0, 0, 0, NAN, 0, 0});
  addAdapter("model.q.lora_B.weight", {2, 2}, {0, 0, 0, 0});
  EXPECT_THAT(refused(), HasSubstr("has the value nan"));
  addAdapter("model.q.lora_A.weight", {2, 3}, six);
  addAdapter("model.q.lora_B.weight", {2, 2}, {0, 0, 0, 0});
  EXPECT_THAT(refused(R"({"r": 2, "lora_alpha": 4,
                          "init_lora_weights": "pissa"})"),
              HasSubstr("export the finished run"));
  addAdapter("model.q.lora_A.weight", {2, 3}, six);
  addAdapter("model.q.lora_B.weight", {2, 2}, {0, 0, 0, 0});
  addAdapter("model.q.lora_B.bias", {2}, {0, 0});
  EXPECT_THAT(refused(), HasSubstr("has none"));
  EXPECT_THAT(refused(), HasSubstr("has no adapter"));
}

TEST_F(MergedModelTest, DecodesQuantizedTensors) {
  // LLM.int8: value = code * scale / 127.
  base.addBytes("model.q.weight", {1, 2}, SafetensorsDtype::kI8, {127, 129});
  base.add("model.q.SCB", {1}, {2});
  addBase("model.norm.weight", {1}, {1});
  base.add("model.exact.weight", {1}, {0.1f});
  addAdapter("model.q.lora_A.weight", {1, 2}, {1, 3});
  addAdapter("model.q.lora_B.weight", {1, 1}, {1});
  auto model = merge(R"({"r": 1, "lora_alpha": 1})", {},
                     R"({"torch_dtype": "float16"})");
  ASSERT_TRUE(model.isOk()) << model.status().message();
  EXPECT_THAT(valuesOf(*model, "model.q.weight"), ElementsAre(3, 1));
  EXPECT_EQ(model->find("model.q.SCB"), nullptr);
  EXPECT_TRUE(model->find("model.q.weight")->isQuantized);
  EXPECT_EQ(model->find("model.q.weight")->dtype, SafetensorsDtype::kF16);
  EXPECT_EQ(model->find("model.norm.weight")->dtype, SafetensorsDtype::kF16);
  EXPECT_EQ(model->find("model.exact.weight")->dtype, SafetensorsDtype::kF32);
}

} // namespace
} // namespace qlora
