// SPDX-License-Identifier: MIT

// Decoding of GPTQ, AWQ and FP8 files, and quantizing to FP4, FP8 and MXFP4,
// compared with the output of Inputs/stored_formats.py.

#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Kernels/Cpu/QuantizeTensor.h"
#include "runtime/Weights/StoredTensors.h"

#include "tests/runtime/TemporaryFolder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

namespace qlora {
namespace {

const std::string kMatrices = QLORA_TEST_INPUTS "/stored";

template <typename Value>
std::vector<Value> valuesOf(const SafetensorsFile &file,
                            const std::string &name) {
  const SafetensorsTensor *tensor = file.get(name).value();
  std::vector<Value> values(tensor->byteCount() / sizeof(Value));
  EXPECT_TRUE(file.read(*tensor, 0,
                        {reinterpret_cast<uint8_t *>(values.data()),
                         tensor->byteCount()})
                  .isOk());
  return values;
}

/// Returns a module's weight, decoded on the CPU. Compares the weight with
/// StoredTensor's result.
std::vector<float> numbersOf(const ModelFiles &model, const std::string &module,
                             std::string *refusal = nullptr) {
  const std::string name = module + ".weight";
  const auto stored = describeStored(model, name);
  if (!stored.isOk()) {
    EXPECT_TRUE(refusal) << stored.status().message();
    if (refusal)
      *refusal = stored.status().message();
    return {};
  }
  const StoredLayout &layout = stored->layout;
  std::vector<uint8_t> bytes(static_cast<size_t>(layout.bytes));
  const Status status =
      copyStored(model, name, stored->shape, layout, bytes.data());
  EXPECT_TRUE(status.isOk()) << status.message();
  std::vector<float> numbers(static_cast<size_t>(layout.elements));
  StoredWeight::of(layout, stored->shape[1])
      .decode(bytes.data(), 0, layout.elements, QLORA_DTYPE_F32,
              numbers.data());
  const auto tensor = StoredTensor::of(layout, bytes.data());
  for (size_t i = 0; i < numbers.size(); ++i)
    EXPECT_EQ(numbers[i], tensor.element(static_cast<int64_t>(i))) << i;
  return numbers;
}

void expectBits(const std::vector<float> &got, const std::vector<float> &want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(got[i], want[i]) << i;
}

TEST(StoredFormats, AreTheNumbersOfTheirDefinition) {
  auto model = ModelFiles::open(kMatrices);
  ASSERT_TRUE(model.isOk()) << model.status().message();
  auto file = SafetensorsFile::open(kMatrices + "/model.safetensors");
  for (const char *module : {"gptq", "gptq_whole", "gptq_8", "awq", "awq_whole",
                             "fp8", "fp8_tensor", "fp8_rows"}) {
    SCOPED_TRACE(module);
    expectBits(numbersOf(*model, module),
               valuesOf<float>(*file, std::string(module) + ".dequantized"));
  }
}

/// Only config.json states the file's convention of zero points.
TEST(StoredFormats, HaveZeroPointsAsTheyAreInGptq2) {
  const TemporaryFolder folder;
  std::filesystem::copy(kMatrices + "/model.safetensors",
                        folder.path("model.safetensors"));
  std::ofstream(folder.path("config.json"))
      << R"({"quantization_config": {"checkpoint_format": "gptq_v2"}})";
  auto model = ModelFiles::open(folder.path());
  auto file = SafetensorsFile::open(kMatrices + "/model.safetensors");
  expectBits(numbersOf(*model, "gptq_v2"),
             valuesOf<float>(*file, "gptq_v2.dequantized"));
}

struct Part {
  const char *name;
  SafetensorsDtype dtype;
  std::vector<int64_t> shape;
};

/// Returns the error for a weight of zeros that consists of these tensors.
std::string refusalOf(const std::vector<Part> &parts) {
  const TemporaryFolder folder;
  const std::vector<uint8_t> zeros(1 << 14);
  std::vector<SafetensorsItem> outputs;
  for (const Part &part : parts) {
    size_t bytes = part.dtype == SafetensorsDtype::kF8E4M3 ? 1
                   : part.dtype == SafetensorsDtype::kF16  ? 2
                                                           : 4;
    for (int64_t extent : part.shape)
      bytes *= static_cast<size_t>(extent);
    outputs.push_back({std::string("w.") + part.name, part.dtype, part.shape,
                       std::span(zeros).first(bytes)});
  }
  EXPECT_TRUE(
      writeSafetensors(folder.path("model.safetensors"), outputs, {}).isOk());
  auto model = ModelFiles::open(folder.path());
  std::string refusal;
  numbersOf(*model, "w", &refusal);
  return refusal;
}

TEST(StoredFormats, AreRefusedWhereTheirPartsDoNotFit) {
  constexpr auto kI32 = SafetensorsDtype::kI32, kF16 = SafetensorsDtype::kF16,
                 kF32 = SafetensorsDtype::kF32,
                 kFp8 = SafetensorsDtype::kF8E4M3;
  const Part codes{"qweight", kI32, {8, 16}}, scales{"scales", kF16, {2, 16}};
  const Part zeros{"qzeros", kI32, {2, 2}};
  EXPECT_EQ(refusalOf({codes, scales, zeros}), "");
  EXPECT_HAS(refusalOf({codes, scales}), "no tensor 'w.qzeros'");
  EXPECT_HAS(refusalOf({codes, scales, {"qzeros", kI32, {3, 2}}}),
             "qweight [8, 16], scales [2, 16], qzeros [3, 2], which are not");
  EXPECT_HAS(refusalOf({codes, scales, {"qzeros", kI32, {2, 1}}}),
             "'w' has 2 bits; supported are GPTQ with 4 or 8");
  EXPECT_HAS(refusalOf({{"qweight", kF32, {8, 16}}, scales, zeros}),
             "'w.qweight' is F32 [8, 16]; expected I32 [8, 16]");
  EXPECT_HAS(refusalOf({codes, {"scales", kI32, {2, 16}}, zeros}),
             "'w.scales' is I32; expected scales of F32, BF16 or F16");
  EXPECT_HAS(refusalOf({codes, {"scales", kF16, {8, 16}},
                        {"qzeros", kI32, {8, 2}}}),
             "'w.scales' has groups of 8; supported are powers of two from 16");
  EXPECT_HAS(
      refusalOf({codes, scales, zeros, {"g_idx", kI32, {64}}}),
      "'w.g_idx' has input 32 in group 0 instead of 1: desc_act");
  EXPECT_HAS(refusalOf({codes, scales, zeros, {"g_idx", kI32, {63}}}),
             "'w.g_idx' is I32 [63]; expected I32 [64]");
  const Part weight{"weight", kFp8, {8, 200}};
  EXPECT_HAS(refusalOf({weight, {"weight_scale_inv", kF32, {3, 2}}}),
             "'w.weight_scale_inv' has shape [3, 2], but 'w.weight' [8, 200]; "
             "expected one scale, 8 for rows, or 1x2 for blocks of 128");
  EXPECT_HAS(refusalOf({weight, {"weight_scale_inv", kF32, {1, 2}}}),
             "'w.weight' has 200 columns in blocks of 128; expected a multiple "
             "of 16");
  EXPECT_HAS(refusalOf({{"weight", kF16, {8, 16}},
                        {"weight_scale", kF32, {8, 1}}}),
             "'w.weight' is F16 [8, 16]; expected F8_E4M3 [8, 16]");
}

TEST(StoredFormats, AreQuantizedAsTheirReferencesDo) {
  auto file = SafetensorsFile::open(kMatrices + "/quantized.safetensors");
  ASSERT_TRUE(file.isOk()) << file.status().message();
  const auto input = valuesOf<float>(*file, "input");
  const auto elements = static_cast<int64_t>(input.size());
  struct Case {
    qlora_dtype format;
    int64_t block;
    bool isDouble;
    const char *name;
  };
  for (const Case &c : {Case{QLORA_DTYPE_FP4, 64, false, "fp4.0"},
                        Case{QLORA_DTYPE_FP4, 64, true, "fp4.1"},
                        Case{QLORA_DTYPE_FP8, 96, false, "fp8"},
                        Case{QLORA_DTYPE_MXFP4, 32, true, "mxfp4"}}) {
    SCOPED_TRACE(c.name);
    const std::string name = c.name;
    const auto layout =
        StoredLayout::of(c.format, elements, c.block, c.isDouble);
    std::vector<uint8_t> bytes(static_cast<size_t>(layout.bytes));
    quantizeStored(layout, input.data(), bytes.data());
    const auto packed = valuesOf<uint8_t>(*file, name + ".packed");
    ASSERT_EQ(static_cast<int64_t>(packed.size()), layout.packedBytes);
    for (size_t i = 0; i < packed.size(); ++i)
      EXPECT_EQ(bytes[i], packed[i]) << i;
    const auto scales = valuesOf<uint8_t>(*file, name + ".absmax");
    EXPECT_EQ(std::memcmp(bytes.data() + layout.scales, scales.data(),
                          scales.size()),
              0);
    if (c.format != QLORA_DTYPE_FP4 || c.isDouble)
      continue;
    const auto tensor = StoredTensor::of(layout, bytes.data());
    const auto numbers = valuesOf<float>(*file, name + ".dequantized");
    for (int64_t i = 0; i < elements; ++i)
      EXPECT_EQ(tensor.element(i), numbers[static_cast<size_t>(i)]) << i;
  }
}

} // namespace
} // namespace qlora
