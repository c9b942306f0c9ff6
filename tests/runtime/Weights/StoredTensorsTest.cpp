// SPDX-License-Identifier: MIT

// Weights of formats other than NF4, which ParametersTest covers.

#include "runtime/Weights/StoredTensors.h"

#include "tests/runtime/TemporaryFolder.h"
#include "tests/runtime/Weights/OneParameter.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace qlora {
namespace {

bool equalsStored(const std::string &file, const std::string &tensor,
            const uint8_t *bytes) {
  auto opened = SafetensorsFile::open(file);
  const SafetensorsTensor *found = opened->get(tensor).value();
  std::vector<uint8_t> expected(found->byteCount());
  EXPECT_TRUE(opened->read(*found, 0, expected).isOk());
  return std::equal(expected.begin(), expected.end(), bytes);
}

/// Returns a parameter [rows, columns] of this format.
OneParameter parameterOf(qlora_dtype format, int64_t rows, int64_t columns,
                         uint32_t quantization, int64_t block, bool coded) {
  OneParameter parameter(kWeight, {rows, columns}, quantization, format, coded);
  qlora_parameter &p = parameter.tables.parameters[0];
  p.format = format;
  p.block = static_cast<uint32_t>(block);
  p.bytes = static_cast<uint64_t>(
      StoredLayout::of(format, rows * columns, block, coded).bytes);
  parameter.tables.arenas[kDemoFrozen].bytes = p.bytes;
  return parameter;
}

/// Quantizes bf16 to LLM.int8 through float16, then loads the result as a
/// stored weight.
TEST(StoredTensors, QuantizesRowsAsBitsandbytes) {
  const auto layout =
      StoredLayout::of(QLORA_DTYPE_LLM_INT8, 64 * 128, 128, false);
  OneParameter made = parameterOf(QLORA_DTYPE_LLM_INT8, 64, 128,
                                  QLORA_QUANTIZATION_ON_LOAD, 128, false);
  Status status = made.fill(kGoldens + "llama-int8/model");
  ASSERT_TRUE(status.isOk()) << status.message();
  const std::string golden = kGoldens + "llama-int8/int8.safetensors";
  const std::string name = kWeight;
  EXPECT_TRUE(equalsStored(golden, name + ".CB", made.bytes().data()));
  EXPECT_TRUE(
      equalsStored(golden, name + ".SCB", made.bytes().data() + layout.scales));

  const std::vector<uint8_t> all(made.bytes().begin(), made.bytes().end());
  const std::span codes(all.data(), 64 * 128);
  const std::span scales(all.data() + layout.scales, 4 * 64);
  const std::string module = name.substr(0, name.rfind('.'));
  for (uint8_t order : {0, 1}) {
    const TemporaryFolder folder;
    ASSERT_TRUE(writeSafetensors(
                    folder.path("model.safetensors"),
                    {{name, SafetensorsDtype::kI8, {64, 128}, codes},
                     {module + ".SCB", SafetensorsDtype::kF32, {64}, scales},
                     {module + ".weight_format",
                      SafetensorsDtype::kU8,
                      {},
                      {&order, 1}}},
                    {})
                    .isOk());
    OneParameter stored = parameterOf(QLORA_DTYPE_LLM_INT8, 64, 128,
                                      QLORA_QUANTIZATION_STORED, 128, false);
    status = stored.fill(folder.path());
    if (order == 0)
      EXPECT_TRUE(std::ranges::equal(all, stored.bytes())) << status.message();
    else
      EXPECT_HAS(status.message(), "weight_format 1 instead of 0 (row)");
  }
}

/// Two experts with one row of 32 elements each. Codes are the index modulo 16.
/// Scales are 2 and 1/4.
TEST(StoredTensors, ReadsMicroscalingWithTheEvenElementInTheLowHalf) {
  std::vector<uint8_t> blocks(32);
  for (size_t i = 0; i < blocks.size(); ++i)
    blocks[i] = static_cast<uint8_t>(2 * i % 16 | (2 * i + 1) % 16 << 4);
  for (uint8_t last : {125, 255}) {
    const std::vector<uint8_t> scales = {128, last};
    const TemporaryFolder folder;
    const std::string name = kWeight;
    ASSERT_TRUE(writeSafetensors(
                    folder.path("model.safetensors"),
                    {{name + "_blocks", SafetensorsDtype::kU8, {2, 1, 1, 16},
                      blocks},
                     {name + "_scales", SafetensorsDtype::kU8, {2, 1, 1},
                      scales}},
                    {})
                    .isOk());
    OneParameter stored = parameterOf(QLORA_DTYPE_MXFP4, 2, 32,
                                      QLORA_QUANTIZATION_STORED, 32, true);
    const Status status = stored.fill(folder.path());
    if (last == 255) {
      EXPECT_HAS(status.message(), "_scales': scale 1 is 255, not a number");
      continue;
    }
    ASSERT_TRUE(status.isOk()) << status.message();
    const auto layout = StoredLayout::of(QLORA_DTYPE_MXFP4, 64, 32, true);
    const auto tensor = StoredTensor::of(layout, stored.bytes().data());
    const float values[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    for (int64_t i = 0; i < 64; ++i)
      EXPECT_EQ(tensor.element(i), (i % 16 < 8 ? 1 : -1) * values[i % 8] *
                                       (i < 32 ? 2.0f : 0.25f))
          << i;
  }
}

} // namespace
} // namespace qlora
