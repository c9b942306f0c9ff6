// SPDX-License-Identifier: MIT

// quantize and quantize_scales give the same bytes as the CPU quantizer for
// model loading, for any shape and any values, including NaN and infinity. The
// bytes of that quantizer equal bitsandbytes'
// (tests/runtime/Kernels/QuantizeNF4Test).

#include <cstring>
#include <limits>
#include <set>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/QuantizeTensor.h"
#include "tests/conformance/KernelCase.h"

namespace qlora {
namespace {

constexpr qlora_dtype F32 = QLORA_DTYPE_F32;
constexpr qlora_dtype BF16 = QLORA_DTYPE_BF16;
constexpr qlora_dtype F16 = QLORA_DTYPE_F16;
constexpr qlora_dtype U8 = QLORA_DTYPE_U8;

struct Shape {
  int64_t elements, block;
};
/// Full and partial blocks, odd counts, fewer elements than a block, and more
/// blocks than one thread block of the kernels handles.
constexpr Shape kShapes[] = {
    {64, 64},         {1, 64},     {63, 64},        {65, 64},
    {3 * 37, 16},     {257, 32},   {7 * 99 + 1, 64}, {128 * 48, 128},
    {5000, 4096},     {9, 65536},  {64 * 300 + 13, 64},
};

/// Kind of elements in a case.
enum class Kind { kNormal, kZeros, kSpecial, kTiny, kHuge };
constexpr Kind kKinds[] = {Kind::kNormal, Kind::kZeros, Kind::kSpecial,
                           Kind::kTiny, Kind::kHuge};

/// Returns element i. Every fifth group of 64 elements is zeros. For kSpecial,
/// the other groups contain NaN and infinity at random.
double element(Kind kind, int64_t i, std::mt19937 &random) {
  std::normal_distribution<double> normal(0, 0.02);
  const double value = normal(random);
  if (kind == Kind::kZeros || i / 64 % 5 == 4)
    return i % 2 == 0 ? 0.0 : -0.0;
  if (kind == Kind::kTiny)
    return value * 1e-38;
  if (kind == Kind::kHuge)
    return value * 1e40;
  if (kind != Kind::kSpecial || random() % 97 != 0)
    return value;
  const double infinity = std::numeric_limits<double>::infinity();
  const double specials[] = {infinity, -infinity, std::nan("")};
  return specials[random() % 3];
}

void fill(KernelCase &test, Kind kind) {
  std::mt19937 random(7);
  for (int64_t i = 0; i < test.constant("elements"); ++i)
    test.set("x", i, element(kind, i, random));
  // A NaN with its sign bit and payload bits set.
  if (kind == Kind::kSpecial && test.dtype("x") == F32) {
    const uint32_t bits = 0xffa01234;
    std::memcpy(test.data("x"), &bits, sizeof bits);
  }
}

/// Returns the tensor as the CPU quantizer for model loading encodes it.
std::vector<uint32_t> expected(KernelCase &test, const StoredLayout &layout) {
  std::vector<uint32_t> words(static_cast<size_t>(layout.bytes) / 4);
  quantizeStored(layout,
              {[&](int64_t first, int64_t count, float *out) {
                 widen(test.dtype("x"),
                       elementAt(test.data("x"), test.dtype("x"), first), out,
                       count);
               },
               nullptr},
              reinterpret_cast<uint8_t *>(words.data()));
  return words;
}

bool equals(KernelCase &test, const char *operand, const void *bytes) {
  return std::memcmp(test.data(operand), bytes, test.bytes(operand)) == 0;
}

TEST(Quantize, GivesTheBytesOfTheLoader) {
  for (const std::string &row : allRowsToTest("quantize"))
    for (const qlora_dtype x : {F32, BF16, F16})
      for (const Shape shape : kShapes)
        for (const Kind kind : kKinds) {
          SCOPED_TRACE(testing::Message()
                       << row << " " << dtypeName(x) << " " << shape.elements
                       << " in " << shape.block << ", kind " << int(kind));
          KernelCase test("quantize",
                          {{"x", x}, {"packed", U8}, {"scales", F32}},
                          {{"elements", shape.elements},
                           {"block", shape.block}});
          fill(test, kind);
          expectOk(test.run(row));
          const auto layout = StoredLayout::of(QLORA_DTYPE_NF4, shape.elements,
                                               shape.block, false);
          const auto words = expected(test, layout);
          const auto *bytes = reinterpret_cast<const uint8_t *>(words.data());
          ASSERT_TRUE(equals(test, "packed", bytes + layout.packed));
          ASSERT_TRUE(equals(test, "scales", bytes + layout.scales));
        }
}

/// Returns the quantization scales of a tensor with elements of the kind.
std::vector<float> scalesOf(int64_t blocks, Kind kind) {
  KernelCase tensor("quantize", {{"x", F32}, {"packed", U8}, {"scales", F32}},
                    {{"elements", blocks * 64 - 3}, {"block", 64}});
  fill(tensor, kind);
  expectOk(tensor.run("cpu"));
  const auto *scales = reinterpret_cast<const float *>(tensor.data("scales"));
  return {scales, scales + blocks};
}

KernelCase makeScales(const std::vector<float> &scales) {
  KernelCase test("quantize_scales",
                  {{"scales", F32},
                   {"map", F32},
                   {"codes", U8},
                   {"absmax", F32},
                   {"offset", F32}},
                  {{"blocks", static_cast<int64_t>(scales.size())}});
  std::memcpy(test.data("scales"), scales.data(), test.bytes("scales"));
  std::memcpy(test.data("map"), nf4DynamicMap().data(), test.bytes("map"));
  return test;
}

TEST(QuantizeScales, GivesTheBytesOfTheLoader) {
  for (const std::string &row : allRowsToTest("quantize_scales"))
    for (const int64_t blocks : {1, 2, 255, 256, 257, 1024, 1025, 5000})
      for (const Kind kind : kKinds) {
        SCOPED_TRACE(testing::Message() << row << " " << blocks
                                        << " blocks, kind " << int(kind));
        const std::vector<float> scales = scalesOf(blocks, kind);
        KernelCase test = makeScales(scales);
        expectOk(test.run(row));
        const auto layout =
            StoredLayout::of(QLORA_DTYPE_NF4, blocks * 64, 64, true);
        std::vector<uint32_t> words(static_cast<size_t>(layout.bytes) / 4);
        auto *bytes = reinterpret_cast<uint8_t *>(words.data());
        quantizeScales(layout, scales, nf4ScaleOffset(scales), bytes);
        ASSERT_TRUE(equals(test, "codes", bytes + layout.scales));
        ASSERT_TRUE(equals(test, "absmax", bytes + layout.nestedAbsmax));
        ASSERT_TRUE(equals(test, "offset", bytes + layout.correction));
      }
}

/// Returns runs of 256 scales. Every run contains 0 and 2, so all runs have the
/// same range. The scales between are at even steps, two in each bucket
/// (nf4Bucket). They use all codes except those of the map's smallest entries.
std::vector<float> evenScales() {
  constexpr int64_t kSteps = 131072;
  std::vector<float> scales;
  for (int64_t run = 0; run < kSteps / 256; ++run)
    for (int64_t i = 0; i < 256; ++i) {
      const double step = double(i * (kSteps / 256) + run);
      scales.push_back(i == 0     ? 0.0f
                       : i == 255 ? 2.0f
                                  : float(step / double(kSteps - 1) * 2));
    }
  return scales;
}

TEST(QuantizeScales, MeetsTheCodes) {
  const std::vector<float> scales = evenScales();
  const auto blocks = static_cast<int64_t>(scales.size());
  const auto layout = StoredLayout::of(QLORA_DTYPE_NF4, blocks * 64, 64, true);
  std::vector<uint32_t> words(static_cast<size_t>(layout.bytes) / 4);
  auto *bytes = reinterpret_cast<uint8_t *>(words.data());
  quantizeScales(layout, scales, nf4ScaleOffset(scales), bytes);
  const uint8_t *codes = bytes + layout.scales;
  EXPECT_GT(std::set<uint8_t>(codes, codes + blocks).size(), 240u);
  for (const std::string &row : allRowsToTest("quantize_scales")) {
    KernelCase test = makeScales(scales);
    expectOk(test.run(row));
    EXPECT_TRUE(equals(test, "codes", codes)) << row;
  }
}

TEST(Quantize, RefusesWhatHasNoLayout) {
  KernelCase test("quantize", {{"x", F32}, {"packed", U8}, {"scales", F32}},
                  {{"elements", 64}, {"block", 64}});
  for (const char *row : {"quantize.cpu", "quantize.cuda"}) {
    KernelRequest request = test.request;
    EXPECT_EQ(findKernelRow(row)->reject(request), std::nullopt);
    request.constants[1] = 48;
    EXPECT_EQ(findKernelRow(row)->reject(request),
              "block must be a power of two in [16, 65536], got 48");
    request = test.request;
    request.dtypes[0] = QLORA_DTYPE_NF4;
    EXPECT_EQ(findKernelRow(row)->reject(request),
              "x must be f32 or bf16 or f16, got nf4");
  }
}

} // namespace
} // namespace qlora
