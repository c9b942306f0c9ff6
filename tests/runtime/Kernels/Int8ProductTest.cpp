// SPDX-License-Identifier: MIT

// Compares int8_matmul, and the panel_matmul that computes its gradient, with
// bitsandbytes' MatMul8bitLt. Results without outlier columns are equal bit for
// bit. Other results differ by rounding of the outliers' f32 sum.

#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Kernels/Rows.h"

#include "runtime/Weights/ConvertWeights.h"
#include "runtime/Weights/Safetensors.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

namespace qlora {
namespace {

constexpr qlora_dtype F32 = QLORA_DTYPE_F32;
constexpr qlora_dtype BF16 = QLORA_DTYPE_BF16;

/// One case in the file that int8_product.py writes.
struct Case {
  const SafetensorsFile &file;
  std::string name;
  qlora_dtype type;
  double threshold;
  int64_t m = 0, rows = 0, columns = 0;
  std::vector<uint32_t> weight = {};

  std::vector<uint8_t> bytes(const std::string &part) const {
    const SafetensorsTensor &tensor = *file.get(name + part).value();
    std::vector<uint8_t> read(tensor.byteCount());
    EXPECT_TRUE(file.read(tensor, 0, read).isOk());
    return read;
  }
  std::vector<float> floats(const std::string &part) const {
    const std::vector<uint8_t> read = bytes(part);
    std::vector<float> values(read.size() / 4);
    std::memcpy(values.data(), read.data(), read.size());
    return values;
  }
  /// Reads W into its layout in memory.
  void load() {
    rows = file.get(name + ".CB").value()->shape[0];
    columns = file.get(name + ".CB").value()->shape[1];
    m = file.get(name + ".x").value()->shape[0];
    const auto layout = StoredLayout::of(QLORA_DTYPE_LLM_INT8, rows * columns,
                                         columns, false);
    weight.resize(static_cast<size_t>(layout.bytes) / 4);
    auto *base = reinterpret_cast<uint8_t *>(weight.data());
    std::ranges::copy(bytes(".CB"), base + layout.packed);
    std::ranges::copy(bytes(".SCB"), base + layout.scales);
    for (int code = 0; code < 256; ++code)
      qlora_store_f32(base + layout.codeBook, code, int8Value(code));
    qlora_store_f32(base + layout.correction, 0,
                    storedFormat(QLORA_DTYPE_LLM_INT8)->scaleFactor);
  }
  std::vector<float> run(const std::string &op, const std::string &input,
                         int64_t width, std::vector<int64_t> constants);
};

/// Returns the op's result for the tensor `input`, in the case's type.
std::vector<float> Case::run(const std::string &op, const std::string &input,
                             int64_t width, std::vector<int64_t> constants) {
  const KernelRow *row = findKernelRow(op);
  const KernelRequest request = {
      row->op,
      {type, QLORA_DTYPE_LLM_INT8, type, QLORA_DTYPE_U8},
      std::move(constants)};
  const std::vector<float> given = floats(input);
  std::vector<uint32_t> x(given.size()), y(static_cast<size_t>(m * width));
  weightsFromFloat(type, given.data(), int64_t(given.size()),
                   reinterpret_cast<uint8_t *>(x.data()));
  const uint64_t size = row->workspaceBytes(request);
  std::vector<uint8_t> workspace(size + 64);
  void *const aligned = reinterpret_cast<void *>(
      (reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64);
  auto kernel = prepareCpuKernel(*row, request, size);
  EXPECT_TRUE(kernel.isOk()) << kernel.status().message();
  std::vector<void *> buffers = {x.data(), weight.data(), y.data(), aligned};
  EXPECT_TRUE((*kernel)->run({buffers, nullptr, nullptr}).isOk());
  std::vector<float> out(y.size());
  weightsToFloat(type, reinterpret_cast<const uint8_t *>(y.data()),
                 int64_t(out.size()), out.data());
  return out;
}

double unit(qlora_dtype type) { return type == BF16 ? 0x1p-8 : 0x1p-24; }

/// Allows errors of two roundings of the result, and of adding `terms` values
/// in f32 in another order. `sum` is the sum of the values' magnitudes.
void expectNear(const std::vector<float> &got, const std::vector<float> &wanted,
                qlora_dtype type, double terms, double sum) {
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_NEAR(got[i], wanted[i],
                2 * unit(type) * std::abs(wanted[i]) +
                    2 * terms * sum * 0x1p-24)
        << i;
}

TEST(Int8Product, IsThatOfBitsandbytes) {
  auto file = SafetensorsFile::open(std::string(QLORA_TEST_INPUTS) +
                                    "/int8_product.safetensors");
  ASSERT_TRUE(file.isOk()) << file.status().message();
  const auto bits = [](double x) { return std::bit_cast<int64_t>(x); };
  for (const char *name : {"odd", "one", "wide"})
    for (int threshold : {0, 6, 1})
      for (qlora_dtype type : {F32, BF16}) {
        Case c = {*file,
                  fmt::format("{}.{}.{}", name, threshold,
                              type == F32 ? "float32" : "bfloat16"),
                  type, double(threshold)};
        SCOPED_TRACE(c.name);
        c.load();
        const std::vector<float> y = c.run(
            "int8_matmul.dots", ".x", c.rows,
            {c.m, c.rows, c.columns, c.columns, c.rows, c.columns, 0,
             bits(threshold), bits(1), bits(0)});
        if (threshold == 0)
          EXPECT_EQ(y, c.floats(".y"));
        else
          // Two inputs are -40 and 7.5; all other inputs and all weights are
          // below 4.
          expectNear(y, c.floats(".y"), type,
                     threshold == 6 ? 2 : double(c.columns),
                     190 + (threshold == 6 ? 0 : 16 * double(c.columns)));
        // dX = dY . W, with W decoded without rounding.
        expectNear(c.run("panel_matmul.onednn", ".dy", c.columns,
                         {c.m, c.rows, c.columns, c.rows, c.columns, 0,
                          c.columns, 0, 32, bits(1), bits(0)}),
                   c.floats(".dx"), type, double(c.rows),
                   16 * double(c.rows));
      }
}

} // namespace
} // namespace qlora
