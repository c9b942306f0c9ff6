// SPDX-License-Identifier: MIT

// Compares the quantizer with bytes that bitsandbytes wrote. Packed codes and
// f32 scales are equal bit for bit. With the reference's offset, nested codes
// and decoded values are equal too. Our own offset is within 2 ulp.

#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Kernels/Cpu/QuantizeTensor.h"

#include "runtime/Weights/ConvertWeights.h"
#include "runtime/Weights/Safetensors.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

namespace qlora {
namespace {

const std::string kInputs = QLORA_TEST_INPUTS;

std::vector<uint8_t> readBytes(const SafetensorsFile &file,
                               const std::string &name) {
  const SafetensorsTensor &tensor = *file.get(name).value();
  std::vector<uint8_t> bytes(tensor.byteCount());
  EXPECT_TRUE(file.read(tensor, 0, bytes).isOk());
  return bytes;
}

std::vector<float> readFloats(const SafetensorsFile &file,
                              const std::string &name) {
  const SafetensorsTensor &tensor = *file.get(name).value();
  std::vector<float> values(static_cast<size_t>(tensor.elementCount()));
  weightsToFloat(*toAbiDtype(tensor.dtype), readBytes(file, name).data(),
                 tensor.elementCount(), values.data());
  return values;
}

bool equalBytes(const SafetensorsFile &file, const std::string &name,
                const void *ours) {
  const std::vector<uint8_t> bytes = readBytes(file, name);
  return std::memcmp(bytes.data(), ours, bytes.size()) == 0;
}

int64_t ulpDistance(float a, float b) {
  return std::abs(int64_t{std::bit_cast<int32_t>(a)} -
                  int64_t{std::bit_cast<int32_t>(b)});
}

std::vector<float> decode(const StoredLayout &layout, const uint8_t *tensor,
                          int64_t columns) {
  std::vector<float> values(static_cast<size_t>(layout.elements));
  StoredWeight::of(layout, columns)
      .decode(tensor, 0, layout.elements, QLORA_DTYPE_F32, values.data());
  return values;
}

/// Quantizes `weight` and compares it with the tensors `name`.* of `reference`.
void compare(const SafetensorsFile &reference, const std::string &name,
             const std::string &offset, const std::vector<float> &weight,
             int64_t block, bool doubleQuant) {
  SCOPED_TRACE(name);
  const auto layout = StoredLayout::of(
      QLORA_DTYPE_NF4, static_cast<int64_t>(weight.size()), block, doubleQuant);
  std::vector<uint32_t> storage(static_cast<size_t>(layout.bytes) / 4,
                                0xa5a5a5a5);
  auto *bytes = reinterpret_cast<uint8_t *>(storage.data());
  quantizeStored(layout, weight.data(), bytes);
  EXPECT_TRUE(equalBytes(reference, name + ".packed", bytes + layout.packed));
  if (doubleQuant) {
    const float theirs = readFloats(reference, name + offset)[0];
    float ours = 0;
    std::memcpy(&ours, bytes + layout.correction, sizeof(ours));
    EXPECT_LE(ulpDistance(ours, theirs), 2);
    const auto plain =
        StoredLayout::of(QLORA_DTYPE_NF4, layout.elements, block, false);
    std::vector<uint32_t> single(static_cast<size_t>(plain.bytes) / 4);
    auto *singleBytes = reinterpret_cast<uint8_t *>(single.data());
    quantizeStored(plain, weight.data(), singleBytes);
    const auto *scales =
        reinterpret_cast<const float *>(singleBytes + plain.scales);
    quantizeScales(layout, {scales, static_cast<size_t>(plain.blocks)},
                      theirs, bytes);
    EXPECT_TRUE(equalBytes(reference, name + ".nested_absmax",
                           bytes + layout.nestedAbsmax));
    EXPECT_TRUE(equalBytes(reference, name + ".nested_quant_map",
                           bytes + layout.nestedMap));
  }
  EXPECT_TRUE(equalBytes(reference, name + ".absmax", bytes + layout.scales));
  const int64_t columns =
      reference.get(name + ".dequantized").value()->shape.back();
  const std::vector<float> decoded = decode(layout, bytes, columns);
  EXPECT_TRUE(equalBytes(reference, name + ".dequantized", decoded.data()));
}

TEST(QuantizeNF4, GivesBitsandbytesBytesForModels) {
  for (const auto &[name, doubleQuant] :
       {std::pair("llama-nf4", true), std::pair("qwen2-nf4", false)}) {
    const std::string folder = kInputs + "/goldens/" + name;
    auto model = SafetensorsFile::open(folder + "/model/model.safetensors");
    auto reference = SafetensorsFile::open(folder + "/nf4.safetensors");
    ASSERT_TRUE(model.isOk() && reference.isOk());
    int weights = 0;
    for (const SafetensorsTensor &tensor : reference->tensors()) {
      if (!tensor.name.ends_with(".packed"))
        continue;
      const std::string weight = tensor.name.substr(0, tensor.name.size() - 7);
      compare(*reference, weight, ".nested_offset", readFloats(*model, weight),
              64, doubleQuant);
      ++weights;
    }
    EXPECT_EQ(weights, 14);
  }
}

TEST(QuantizeNF4, GivesBitsandbytesBytesForOddTensors) {
  auto reference = SafetensorsFile::open(kInputs + "/nf4_odd.safetensors");
  ASSERT_TRUE(reference.isOk()) << reference.status().message();
  for (const char *name :
       {"wide", "odd", "tiny", "zeros", "partial_zeros", "all_zeros", "half",
        "narrow_rows", "long_rows", "odd_rows", "even_rows"})
    for (const int64_t block : {64, 4096})
      for (const bool doubleQuant : {false, true}) {
        const std::string prefix =
            fmt::format("{}.{}.{}", name, block, doubleQuant ? 1 : 0);
        compare(*reference, prefix, ".nested_offset",
                readFloats(*reference, prefix + ".input"), block, doubleQuant);
      }
}

TEST(QuantizeNF4, FetchesEachWindowOnceBeforeItIsRead) {
  const int64_t elements = (int64_t{1} << 23) + 100;
  const auto layout = StoredLayout::of(QLORA_DTYPE_NF4, elements, 64, true);
  std::vector<uint32_t> storage(static_cast<size_t>(layout.bytes) / 4);
  int64_t next = 0;
  quantizeStored(layout,
              {[&](int64_t first, int64_t count, float *out) {
                 EXPECT_LE(first + count, next);
                 for (int64_t i = 0; i < count; ++i)
                   out[i] = static_cast<float>((first + i) % 1001 - 500);
               },
               [&](int64_t first, int64_t count) {
                 EXPECT_EQ(first, next);
                 EXPECT_LE(count, kQuantizedWindow);
                 next = first + count;
               }},
              reinterpret_cast<uint8_t *>(storage.data()));
  EXPECT_EQ(next, elements);
}

TEST(QuantizeNF4, LetsNaNShow) {
  std::vector<float> values(64, 1.0f);
  values[3] = std::nanf("");
  const auto layout = StoredLayout::of(QLORA_DTYPE_NF4, 64, 64, false);
  std::vector<uint32_t> storage(static_cast<size_t>(layout.bytes) / 4);
  auto *bytes = reinterpret_cast<uint8_t *>(storage.data());
  quantizeStored(layout, values.data(), bytes);
  EXPECT_TRUE(std::isnan(decode(layout, bytes, 64)[0]));
}

} // namespace
} // namespace qlora
