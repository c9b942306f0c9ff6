// SPDX-License-Identifier: MIT

// Weights that are quantized when they are written: their bytes are those of
// the quantizer of bases, whatever the shape.

#include "runtime/Export/MergedFolder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "runtime/Base/Sha256.h"
#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Kernels/Cpu/QuantizeTensor.h"
#include "tests/runtime/Export/SmallModel.h"

namespace qlora {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

/// Values with a small bf16 error, and a change of sign.
std::vector<float> wave(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::ldexp(std::round(100 * std::sin(float(i))), -7);
  return values;
}

class QuantizedWeightsTest : public SmallModel {
protected:
  void SetUp() override {
    SmallModel::SetUp();
    fs::create_directories(folder.path("out"));
    addAdapter("other.lora_A.weight", {1, 2}, {1, 1});
    addAdapter("other.lora_B.weight", {2, 1}, {0, 0});
    addBase("other.weight", {2, 2}, {1, 2, 3, 4});
  }
  /// Writes a model whose tensor `name` is quantized.
  Status write(const char *format, const std::string &name, bool isTurned,
               bool doubleQuant = false, uint64_t most = 1 << 30) {
    auto model = merge(R"({"r": 1, "lora_alpha": 1})");
    if (!model.isOk())
      return model.status();
    how.format = storedFormat(std::string_view(format));
    how.doubleQuant = doubleQuant;
    how.weights = {{name, isTurned}};
    how.config = {{"quant_method", "some"}};
    MergedFolderRequest request;
    request.mostShardBytes = most;
    request.quantization = &how;
    return writeMergedFolder(*model, folder.path("out"), request);
  }
  /// Returns the layout's bytes that were written, as our reader reads them.
  std::vector<uint8_t> written(const std::string &name) {
    auto files = ModelFiles::open(folder.path("out"));
    EXPECT_TRUE(files.isOk()) << files.status().message();
    auto packed = PackedWeight::read(*files, name);
    EXPECT_TRUE(packed.isOk()) << packed.status().message();
    layout = packed->layout;
    const auto bytes = packed->bytes.bytes();
    return {bytes.begin(), bytes.begin() + layout.bytes};
  }
  /// Expects the bytes that the quantizer gives for the values.
  void expectBytes(const std::string &name, const std::vector<float> &values) {
    const std::vector<uint8_t> bytes = written(name);
    auto memory = HostMemory::anonymous(bytes.size());
    ASSERT_TRUE(memory.isOk());
    quantizeStored(layout, values.data(), memory->bytes().data());
    EXPECT_TRUE(std::ranges::equal(bytes,
                                   memory->bytes().first(bytes.size())));
  }

  WeightQuantization how;
  StoredLayout layout; ///< of written()
};

std::vector<float> turned(const std::vector<float> &values, int64_t rows,
                          int64_t columns) {
  std::vector<float> out(values.size());
  for (int64_t i = 0; i < rows * columns; ++i)
    out[static_cast<size_t>(i % columns * rows + i / columns)] =
        values[static_cast<size_t>(i)];
  return out;
}

TEST_F(QuantizedWeightsTest, NF4HasTheBytesOfTheQuantizer) {
  for (const bool doubleQuant : {false, true}) {
    const std::vector<float> values = wave(33 * 7); // not whole blocks
    if (!doubleQuant)
      addBase("a.weight", {33, 7}, values);
    const Status status = write("nf4", "a.weight", false, doubleQuant);
    ASSERT_TRUE(status.isOk()) << status.message();
    expectBytes("a.weight", values);
    EXPECT_EQ(layout.block, 64);
    EXPECT_EQ(layout.doubleQuant, doubleQuant);
  }
}

TEST_F(QuantizedWeightsTest, Conv1DIsTurned) {
  const std::vector<float> values = wave(6 * 70);
  addBase("a.weight", {6, 70}, values);
  ASSERT_TRUE(write("nf4", "a.weight", true).isOk());
  expectBytes("a.weight", turned(values, 6, 70));
}

TEST_F(QuantizedWeightsTest, FP8HasAScaleForEachRow) {
  const std::vector<float> values = wave(5 * 9);
  addBase("a.weight", {5, 9}, values);
  ASSERT_TRUE(write("fp8", "a.weight", false).isOk());
  expectBytes("a.weight", values);
  EXPECT_EQ(layout.block, 9);
}

TEST_F(QuantizedWeightsTest, ExpertsAreTurnedOneByOne) {
  const std::vector<float> values = wave(3 * 64 * 6);
  addBase("experts.down_proj", {3, 64, 6}, values);
  ASSERT_TRUE(write("mxfp4", "experts.down_proj", true).isOk());
  std::vector<float> each;
  for (int64_t expert = 0; expert < 3; ++expert)
    for (const float value :
         turned({values.begin() + expert * 384,
                 values.begin() + (expert + 1) * 384}, 64, 6))
      each.push_back(value);
  expectBytes("experts.down_proj", each);
}

TEST_F(QuantizedWeightsTest, PartsStayTogetherInShards) {
  addBase("a.weight", {64, 64}, wave(64 * 64));
  addBase("b.weight", {2, 2}, {1, 2, 3, 4});
  ASSERT_TRUE(write("nf4", "a.weight", false, true, 100).isOk());
  const auto index = nlohmann::json::parse(
      folder.read("out/model.safetensors.index.json"));
  const auto &files = index["weight_map"];
  EXPECT_EQ(files["a.weight"], files["a.weight.nested_quant_map"]);
  EXPECT_NE(files["a.weight"], files["b.weight"]);
  EXPECT_EQ(index["metadata"]["total_parameters"], 64 * 64 + 8);
  const auto config = nlohmann::json::parse(folder.read("out/config.json"));
  EXPECT_EQ(config["quantization_config"]["quant_method"], "some");
}

TEST_F(QuantizedWeightsTest, RefusesValuesThatAreNotFinite) {
  std::vector<float> values = wave(64);
  values[7] = HUGE_VALF;
  addBase("a.weight", {8, 8}, values);
  EXPECT_THAT(write("nf4", "a.weight", false).message(),
              HasSubstr("'a.weight' has the value inf, which cannot be "
                        "quantized"));
}

TEST_F(QuantizedWeightsTest, DigestsAreOfDecodedValues) {
  addBase("a.weight", {33, 7}, wave(33 * 7));
  ASSERT_TRUE(write("nf4", "a.weight", false).isOk());
  const auto digests = digestsOfDecoded(folder.path("out"));
  ASSERT_TRUE(digests.isOk()) << digests.status().message();
  const std::vector<uint8_t> bytes = written("a.weight");
  std::vector<float> values(33 * 7);
  StoredWeight::of(layout, 7).decode(bytes.data(), 0, 33 * 7, QLORA_DTYPE_F32,
                                     values.data());
  Sha256 digest;
  digest.add(values.data(), 4 * values.size());
  EXPECT_EQ(digests->at("a.weight"), digest.finish());
}

} // namespace
} // namespace qlora
