// SPDX-License-Identifier: MIT

// Tensors and keys of GGUF files, compared with llama.cpp's own converter on
// the golden models (Inputs/gguf/make_converted.py).

#include "frontend/GgufData.h"
#include "frontend/GgufFamilies.h"
#include "frontend/GgufModel.h"
#include "frontend/GgufValues.h"

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Weights/ModelFiles.h"

#include "tests/runtime/TemporaryFolder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <set>

using nlohmann::json;

namespace qlora {
namespace {

const json &converted() {
  static const json all =
      json::parse(std::ifstream(QLORA_TEST_INPUTS "/gguf/converted.json"));
  return all;
}

/// A golden model.
struct Golden {
  std::string folder;
  ModelFiles files;
  ModelConfig config;
  DecoderWeights weights;
};

Golden open(const std::string &name) {
  std::string folder =
      std::string(QLORA_TEST_INPUTS "/goldens/") + name + "/model";
  ModelFiles files = ModelFiles::open(folder).value();
  ModelConfig config = readHfConfig(folder).value();
  std::vector<std::string> warnings;
  DecoderWeights weights = findWeights(config, files, warnings).value();
  return {std::move(folder), std::move(files), std::move(config),
          std::move(weights)};
}

/// Changes values of tiny models that llama.cpp's architectures have fixed.
void makeUsual(ModelConfig &config) {
  if (config.family->modelType == "gpt_oss")
    config.experts.glu.limit = 7;
  if (config.family->scalesEmbedding)
    config.attentionScale = 1 / std::sqrt(double(config.headDim));
}

/// Opens dense tensors of the folder.
OpenTensor reading(const ModelFiles &files) {
  return [&files](const std::string &name) -> StatusOr<ReadValues> {
    QLORA_ASSIGN_OR_RETURN(const ModelFiles::Entry entry, files.get(name));
    const qlora_dtype dtype = toAbiDtype(entry.tensor->dtype).value();
    return ReadValues([=](int64_t first, std::span<float> out) {
      const unsigned size = dtypeBits(dtype) / 8;
      std::vector<uint8_t> bytes(out.size() * size);
      QLORA_RETURN_IF_ERROR(entry.file->read(
          *entry.tensor, static_cast<uint64_t>(first) * size, bytes));
      widen(dtype, bytes.data(), out.data(),
            static_cast<int64_t>(out.size()));
      return Status::ok();
    });
  };
}

std::vector<GgufTensor> tensorsOf(const std::vector<GgufSource> &sources) {
  std::vector<GgufTensor> tensors;
  for (const GgufSource &source : sources)
    tensors.push_back(source.tensor);
  return tensors;
}

/// Writes the data to a file, and returns the offset of the first tensor.
uint64_t write(const GgufModel &model, const OpenTensor &open,
               const std::string &path) {
  auto writer = GgufWriter::create(path, model.keys, tensorsOf(model.sources));
  EXPECT_TRUE(writer.isOk()) << writer.status().message();
  const Status status = writeGgufData(model.sources, open, *writer);
  EXPECT_TRUE(status.isOk()) << status.message();
  EXPECT_TRUE(writer->commit().isOk());
  return writer->dataStart();
}

/// Compares values with the two sums of make_converted.py.
void expectSums(std::span<const float> values, const json &expected,
                const std::string &name) {
  double sum = 0, weighted = 0, magnitude = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double weight = 1 + double(i % 1009);
    sum += values[i];
    weighted += values[i] * weight;
    magnitude += std::abs(values[i]) * weight;
  }
  EXPECT_NEAR(sum, expected[1].get<double>(), 1e-7 * magnitude) << name;
  EXPECT_NEAR(weighted, expected[2].get<double>(), 1e-7 * magnitude) << name;
}

double numberOf(const GgufValue &value) {
  return std::visit(
      [](const auto &held) -> double {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(held)>>)
          return double(held);
        else
          return std::nan("");
      },
      value);
}

/// Keys of the converter that llama.cpp does not read, or that it has as
/// defaults.
const std::set<std::string> kUnread = {"stablelm.use_parallel_residual"};

void expectKeys(const GgufMetadata &keys, const json &expected) {
  for (const auto &[name, value] : expected.items()) {
    if (kUnread.contains(name))
      continue;
    const auto found = std::ranges::find(keys, name, [](const auto &key) {
      return key.first;
    });
    ASSERT_NE(found, keys.end()) << name;
    if (value.is_string()) {
      EXPECT_EQ(std::get<std::string>(found->second), value) << name;
      continue;
    }
    const double number = value.get<double>();
    EXPECT_NEAR(numberOf(found->second), number, 1e-6 * std::abs(number))
        << name;
  }
}

class EachCase : public testing::TestWithParam<std::string> {};

std::vector<std::string> caseNames() {
  std::vector<std::string> names;
  for (const auto &[name, content] : converted().items())
    if (name != "gptoss-mxfp4") // its tensors are not dense
      names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Gguf, EachCase, testing::ValuesIn(caseNames()),
                         [](const auto &test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(EachCase, IsTheConvertersModel) {
  Golden golden = open(GetParam());
  makeUsual(golden.config);
  auto model = describeGguf(golden.config, golden.weights, "");
  ASSERT_TRUE(model.isOk()) << model.status().message();
  const json &expected = converted()[GetParam()];
  expectKeys(model->keys, expected["keys"]);
  const TemporaryFolder folder;
  const uint64_t start =
      write(*model, reading(golden.files), folder.path("model.gguf"));
  const std::string bytes = folder.read("model.gguf");
  size_t offset = start;
  std::set<std::string> seen;
  for (const GgufTensor &tensor : tensorsOf(model->sources)) {
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    std::memcpy(values.data(), bytes.data() + offset,
                values.size() * sizeof(float));
    offset += ggufAligned(values.size() * sizeof(float));
    seen.insert(tensor.name);
    // A tied head that llama.cpp's architecture lacks is written twice.
    if (tensor.name == "output.weight" && !golden.weights.head)
      continue;
    ASSERT_TRUE(expected["tensors"].contains(tensor.name)) << tensor.name;
    const json &reference = expected["tensors"][tensor.name];
    EXPECT_EQ(json(tensor.shape), reference[0]) << tensor.name;
    expectSums(values, reference, tensor.name);
  }
  for (const auto &[name, content] : expected["tensors"].items())
    EXPECT_TRUE(seen.contains(name)) << name;
}

TEST_P(EachCase, IsReadBack) {
  Golden golden = open(GetParam());
  makeUsual(golden.config);
  auto model = describeGguf(golden.config, golden.weights, "");
  ASSERT_TRUE(model.isOk());
  const TemporaryFolder folder;
  const std::string path = folder.path("model.gguf");
  const uint64_t start = write(*model, reading(golden.files), path);
  const auto values = GgufValues::open(path, model->sources, start);
  ASSERT_TRUE(values.isOk());
  std::set<std::string> names;
  for (const GgufSource &source : model->sources)
    names.insert(source.parts.begin(), source.parts.end());
  for (const std::string &name : names) {
    const int64_t count =
        golden.files.get(name)->tensor->elementCount();
    std::vector<float> expected(static_cast<size_t>(count)), found;
    ASSERT_TRUE((*reading(golden.files)(name))(0, expected).isOk());
    ASSERT_TRUE(values->read(name, count, found).isOk()) << name;
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(found[i], expected[i], 2e-7 * std::abs(expected[i]) + 1e-7)
          << name << " " << i;
  }
}

TEST(GgufModel, FoldsTheAttentionScaleIntoQ) {
  for (const char *name : {"gemma2-nf4", "gemma3-nf4"}) {
    Golden golden = open(name);
    auto model = describeGguf(golden.config, golden.weights, "");
    ASSERT_TRUE(model.isOk());
    const double factor = std::sqrt(16.0 / 24.0);
    for (const GgufSource &source : model->sources) {
      const bool hasNorm = golden.weights.layers[0].queryNorm.has_value();
      const bool isScaled =
          source.tensor.name.ends_with(hasNorm ? "attn_q_norm.weight"
                                               : "attn_q.weight");
      EXPECT_NEAR(source.factor, isScaled ? factor : 1, 1e-7)
          << source.tensor.name;
      if (source.addend != 0) {
        EXPECT_FLOAT_EQ(source.addend, source.factor) << source.tensor.name;
      }
    }
  }
}

/// Describes a golden model with a changed configuration, and returns the
/// error.
template <typename Change>
std::string errorOf(const std::string &name, Change change) {
  Golden golden = open(name);
  makeUsual(golden.config);
  change(golden.config);
  return describeGguf(golden.config, golden.weights, "").status().message();
}

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

TEST(GgufModel, RefusesWhatLlamaCppCannotCompute) {
  EXPECT_HAS(errorOf("qwen2-nf4", [](ModelConfig &c) { c.outputBias = true; }),
             "qwen2 has no bias of the attention's output");
  EXPECT_HAS(errorOf("qwen2-nf4", [](ModelConfig &c) { c.headDim = 32; }),
             "4 heads of 32 values with a width of 64");
  EXPECT_HAS(errorOf("llama-lora",
                     [](ModelConfig &c) { c.activation = "gelu"; }),
             "activation gelu");
  EXPECT_HAS(errorOf("smollm3-nf4", [](ModelConfig &c) { c.mlpBias = true; }),
             "biases of the MLP");
  EXPECT_HAS(errorOf("starcoder2-nf4", [](ModelConfig &) {}),
             "model without biases");
  EXPECT_HAS(errorOf("qwen3moe-nf4",
                     [](ModelConfig &c) { c.experts.normalized = false; }),
             "without normalization");
  EXPECT_HAS(errorOf("qwen2moe-nf4", [](ModelConfig &) {}),
             "layers without experts");
  EXPECT_HAS(errorOf("gptoss",
                     [](ModelConfig &c) { c.experts.glu.limit = 3; }),
             "limit 3");
  EXPECT_HAS(errorOf("llama-lora", [](ModelConfig &c) { c.maxPositions = 0; }),
             "'max_position_embeddings', which llama.cpp needs");
  EXPECT_HAS(errorOf("qwen2-nf4",
                     [](ModelConfig &c) {
                       c.rotaries[0].rope.kind = RopeKind::kLlama3;
                     }),
             "RoPE of kind llama3");
  EXPECT_HAS(errorOf("smollm3-nf4",
                     [](ModelConfig &c) { c.rotaryOfLayer[0] = -1; }),
             "layers without RoPE");
  EXPECT_HAS(errorOf("gemma2-nf4", [](ModelConfig &c) { c.windows[1] = 4; }),
             "windows apart from the pattern of 2 layers");
}

/// Describes a golden model and returns its warnings.
template <typename Change>
std::vector<std::string> warningsOf(const std::string &name, Change change) {
  Golden golden = open(name);
  makeUsual(golden.config);
  change(golden.config);
  return describeGguf(golden.config, golden.weights, "")->warnings;
}

TEST(GgufModel, WarnsOfWhatLlamaCppIgnores) {
  const auto none = [](ModelConfig &) {};
  EXPECT_TRUE(warningsOf("llama-lora", none).empty());
  const auto window = warningsOf("mistral-window", none);
  ASSERT_EQ(window.size(), 1u);
  EXPECT_HAS(window[0], "ignores this model's attention window of");
  EXPECT_TRUE(warningsOf("mistral-window", [](ModelConfig &c) {
                c.maxPositions = c.windows[0];
              }).empty());
  EXPECT_HAS(warningsOf("gptoss", none).at(0), "'truncate: false'");
  EXPECT_HAS(warningsOf("phi3-nf4", none).at(0), "up to -c 16");
  EXPECT_HAS(warningsOf("llama-dynamic", none).at(0), "no dynamic RoPE");
}

} // namespace
} // namespace qlora
