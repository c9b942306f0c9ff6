// SPDX-License-Identifier: MIT

// Weights that a device or the host quantizes have the same bytes, for any type
// in the file, any form in the arena, and any window size.

#include "runtime/Weights/QuantizeWeight.h"

#include "runtime/Weights/ConvertWeights.h"
#include "tests/runtime/TemporaryFolder.h"
#include "tests/runtime/Weights/OneParameter.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

namespace qlora {
namespace {

/// Writes a model with one weight of normally distributed values as `dtype`. If
/// `turned`, the file has the transposed weight.
void writeWeight(const TemporaryFolder &folder, std::vector<int64_t> shape,
                 qlora_dtype dtype, bool turned = false) {
  int64_t elements = 1;
  for (const int64_t extent : shape)
    elements *= extent;
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> values(static_cast<size_t>(elements));
  for (float &value : values)
    value = normal(random);
  if (turned) {
    const std::vector<float> rows = values;
    for (int64_t i = 0; i < elements; ++i)
      values[i % shape[1] * shape[0] + i / shape[1]] = rows[i];
    std::swap(shape[0], shape[1]);
  }
  std::vector<uint8_t> bytes(values.size() * weightBytes(dtype));
  weightsFromFloat(dtype, values.data(), elements, bytes.data());
  const auto stored = dtype == QLORA_DTYPE_F32    ? SafetensorsDtype::kF32
                      : dtype == QLORA_DTYPE_BF16 ? SafetensorsDtype::kBF16
                                                  : SafetensorsDtype::kF16;
  ASSERT_TRUE(writeSafetensors(folder.path("model.safetensors"),
                               {{"w", stored, std::move(shape), bytes}}, {})
                  .isOk());
}

/// Expects the same bytes on the host, and on a device with little and with
/// much scratch memory.
void expectSameOnDevice(const TemporaryFolder &folder,
                        const OneParameter &parameter) {
  OneParameter host = parameter, device = parameter;
  ASSERT_EQ(host.fill(folder.path()).message(), "");
  const qlora_parameter &weight = parameter.tables.parameters[0];
  const auto layout =
      StoredLayout::of(QLORA_DTYPE_NF4, weight.shape[0] * weight.shape[1], 64,
                       weight.double_quant != 0);
  const auto whole =
      static_cast<uint64_t>(layout.bytes + 4 * layout.blocks + 64);
  // Windows of three and a half blocks, and of the complete weight.
  for (const uint64_t window : {900u, 1u << 20}) {
    std::vector<std::string> remarks;
    ASSERT_EQ(
        device.fillOnDevice(folder.path(), whole + window, &remarks).message(),
        "");
    EXPECT_EQ(device.words, host.words);
    EXPECT_TRUE(remarks.empty());
  }
}

TEST(QuantizeWeight, GivesTheHostsBytesOnADevice) {
  const std::vector<int64_t> shapes[] = {{37, 64}, {33, 99}, {5, 7}, {29, 176}};
  for (const auto &shape : shapes)
    for (const auto file :
         {QLORA_DTYPE_F32, QLORA_DTYPE_BF16, QLORA_DTYPE_F16}) {
      const TemporaryFolder folder;
      writeWeight(folder, shape, file);
      for (const auto type : {QLORA_DTYPE_NF4, QLORA_DTYPE_F32,
                              QLORA_DTYPE_BF16, QLORA_DTYPE_F16})
        for (const bool doubleQuant : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << shape[0] << "x" << shape[1] << " " << dtypeName(file)
                       << " to " << dtypeName(type) << ", " << doubleQuant);
          OneParameter parameter("w", shape, QLORA_QUANTIZATION_ON_LOAD, type,
                                 doubleQuant);
          parameter.tables.parameters[0].file_dtype = file;
          expectSameOnDevice(folder, parameter);
        }
    }
}

TEST(QuantizeWeight, TurnsWhatIsStoredTheOtherWayRound) {
  const std::vector<int64_t> shapes[] = {{37, 64}, {33, 99}, {70, 128}};
  for (const auto &shape : shapes)
    for (const auto file : {QLORA_DTYPE_F32, QLORA_DTYPE_BF16})
      for (const auto type : {QLORA_DTYPE_NF4, QLORA_DTYPE_F32}) {
        const TemporaryFolder straight, across;
        writeWeight(straight, shape, file);
        writeWeight(across, shape, file, /*turned=*/true);
        OneParameter plain("w", shape, QLORA_QUANTIZATION_ON_LOAD, type);
        OneParameter turned("w", shape, QLORA_QUANTIZATION_TURNED, type);
        for (OneParameter *parameter : {&plain, &turned})
          parameter->tables.parameters[0].file_dtype = file;
        ASSERT_EQ(plain.fill(straight.path()).message(), "");
        ASSERT_EQ(turned.fill(across.path()).message(), "");
        EXPECT_EQ(turned.words, plain.words);
        expectSameOnDevice(across, turned);
        EXPECT_HAS(plain.fill(across.path()).message(), "has shape");
      }
}

TEST(QuantizeWeight, SaysWhereScratchMemoryIsMissing) {
  const TemporaryFolder folder;
  writeWeight(folder, {33, 99}, QLORA_DTYPE_BF16);
  for (const auto type : {QLORA_DTYPE_NF4, QLORA_DTYPE_BF16}) {
    OneParameter host("w", {33, 99}, QLORA_QUANTIZATION_ON_LOAD, type);
    ASSERT_EQ(host.fill(folder.path()).message(), "");
    OneParameter device = host;
    std::vector<std::string> remarks;
    ASSERT_EQ(device.fillOnDevice(folder.path(), 128, &remarks).message(), "");
    EXPECT_EQ(device.words, host.words);
    ASSERT_EQ(remarks.size(), 1u);
    EXPECT_HAS(remarks[0], "'w' is quantized on the host: the device would "
                           "need ");
    EXPECT_HAS(remarks[0], "but the plan has 128");
  }
}

/// Reading a mapped file that became shorter would raise SIGBUS.
TEST(QuantizeWeight, AFileThatIsCutShortWhileItIsReadIsAnError) {
  const TemporaryFolder folder;
  const std::string path = folder.path("model.safetensors");
  for (const auto &[quantization, type] :
       {std::pair{QLORA_QUANTIZATION_ON_LOAD, QLORA_DTYPE_NF4},
        {QLORA_QUANTIZATION_ON_LOAD, QLORA_DTYPE_BF16},
        {QLORA_QUANTIZATION_NONE, QLORA_DTYPE_F32},
        {QLORA_QUANTIZATION_NONE, QLORA_DTYPE_BF16}})
    for (const bool onDevice : {false, true}) {
      SCOPED_TRACE(testing::Message() << quantization << " " << type << " "
                                      << onDevice);
      writeWeight(folder, {512, 128}, QLORA_DTYPE_BF16);
      OneParameter parameter("w", {512, 128}, quantization, type);
      parameter.afterOpen = [&] { std::filesystem::resize_file(path, 8192); };
      const Status status = onDevice
                                ? parameter.fillOnDevice(folder.path(), 1 << 20)
                                : parameter.fill(folder.path());
      EXPECT_EQ(status.code(), StatusCode::kDataLoss);
      EXPECT_HAS(status.message(),
                 "'" + path + "': tensor 'w': it ends at byte 8192");
    }
}

TEST(QuantizeWeight, RefusesOnADeviceWhatTheHostRefuses) {
  const std::string model = kGoldens + "llama-nf4/model";
  OneParameter shape(kWeight, {176, 64}, QLORA_QUANTIZATION_ON_LOAD,
                     QLORA_DTYPE_NF4);
  EXPECT_HAS(shape.fillOnDevice(model, 1 << 20).message(),
             "has shape [64, 176], but train.so was compiled for [176, 64]");
  OneParameter name("nope", {64, 176}, QLORA_QUANTIZATION_ON_LOAD,
                    QLORA_DTYPE_NF4);
  EXPECT_HAS(name.fillOnDevice(model, 1 << 20).message(), "no tensor 'nope'");
  // Opening rejects a file that ends early.
  const TemporaryFolder folder;
  writeWeight(folder, {33, 99}, QLORA_DTYPE_BF16);
  const std::string path = folder.path("model.safetensors");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 2);
  OneParameter shorter("w", {33, 99}, QLORA_QUANTIZATION_ON_LOAD,
                       QLORA_DTYPE_NF4);
  const std::string said =
      shorter.fillOnDevice(folder.path(), 1 << 20).message();
  EXPECT_HAS(said, "model.safetensors");
  EXPECT_EQ(said.find('\n'), std::string::npos);
}

} // namespace
} // namespace qlora
