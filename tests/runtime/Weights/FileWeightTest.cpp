// SPDX-License-Identifier: MIT

// A parameter that consists of several tensors in the files, quantized as one.

#include "runtime/Weights/FileWeight.h"

#include "tests/runtime/Weights/OneParameter.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

/// Tensor names of one expert: rows of gate, then rows of up.
constexpr const char kGateUp[] =
    "gate_up\0model.layers.0.mlp.experts.0.gate_proj.weight\0"
    "model.layers.0.mlp.experts.0.up_proj.weight";

OneParameter stacked(const char *names, std::vector<int64_t> shape,
                     uint32_t parts) {
  OneParameter parameter(names, std::move(shape), QLORA_QUANTIZATION_ON_LOAD,
                         QLORA_DTYPE_NF4, /*doubleQuant=*/false);
  parameter.tables.parameters[0].parts = parts;
  return parameter;
}

/// bitsandbytes quantized all experts as one tensor, which must begin with the
/// same bytes as the first expert.
TEST(FileWeight, QuantizesStackedTensorsAsOne) {
  OneParameter parameter = stacked(kGateUp, {96, 64}, 2);
  const Status status = parameter.fill(kGoldens + "qwen3moe-nf4/model");
  ASSERT_TRUE(status.isOk()) << status.message();
  auto golden =
      SafetensorsFile::open(kGoldens + "qwen3moe-nf4/nf4.safetensors");
  const SafetensorsTensor *packed =
      golden->get("model.layers.0.mlp.experts.gate_up_proj.packed").value();
  std::vector<uint8_t> expected(96 * 64 / 2);
  ASSERT_TRUE(golden->read(*packed, 0, expected).isOk());
  EXPECT_TRUE(std::ranges::equal(
      expected, parameter.bytes().first(expected.size())));
}

TEST(FileWeight, NamesThePartThatIsWrong) {
  const std::string model = kGoldens + "qwen3moe-nf4/model";
  OneParameter shape = stacked(kGateUp, {64, 64}, 2);
  EXPECT_HAS(shape.fill(model).message(),
             "gate_proj.weight' has shape [48, 64], but train.so was compiled "
             "for [32, 64]");
  OneParameter name = stacked(
      "x\0model.layers.0.mlp.experts.0.gate_proj.weight\0nope", {96, 64}, 2);
  EXPECT_HAS(name.fill(model).message(), "has no tensor 'nope'");
  OneParameter rows = stacked(kGateUp, {95, 64}, 2);
  EXPECT_HAS(rows.fill(model).message(), "2 parts, but quantization 1 and 2 "
                                         "dimensions");
}

} // namespace
} // namespace qlora
