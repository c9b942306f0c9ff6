// SPDX-License-Identifier: MIT

// Compares the instructions in TensorCore.cuh with plain loops.

#include "runtime/Kernels/Rows.h"
#include "tests/cuda/Platform/Platform.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>

using namespace qlora;
using namespace qlora::platform;

/// Rows of 16 values that bf16 represents exactly.
using Matrix = std::vector<std::array<float, 16>>;

static Matrix randomMatrix(size_t rows) {
  std::mt19937 generator(7);
  std::uniform_real_distribution<float> uniform(-4, 4);
  Matrix matrix(rows);
  for (auto &row : matrix)
    for (float &x : row)
      x = qlora_bf16_to_f32(qlora_f32_to_bf16(uniform(generator)));
  return matrix;
}

/// Returns the matrix as bf16, two values per float.
static std::vector<float> packed(const Matrix &matrix) {
  std::vector<uint16_t> halves;
  for (const auto &row : matrix)
    for (float x : row)
      halves.push_back(qlora_f32_to_bf16(x));
  std::vector<float> floats(halves.size() / 2);
  std::memcpy(floats.data(), halves.data(), 2 * halves.size());
  return floats;
}

/// Returns element (row, column) of matmul `number` (0 or 1) from the
/// accumulators of a warp's lanes. The result is 16 by 16: two accumulators of
/// 8 columns each, side by side.
static float elementOf(const std::vector<float> &sums, size_t warp,
                       size_t number, size_t row, size_t column) {
  const size_t lane = row % 8 * 4 + column % 8 / 2;
  const size_t value = row / 8 * 2 + column % 2;
  return sums[((warp * 4 + number * 2 + column / 8) * 32 + lane) * 4 + value];
}

TEST(TensorCore, MultipliesAsALoop) {
  EXPECT_TRUE(inProcess({}, [] {
    // The second warp's B has only 11 of 16 rows.
    Matrix rows = randomMatrix(64);
    Client client;
    const CUdeviceptr in = client.allocate(64 * 16 / 2);
    const CUdeviceptr out = client.allocate(1024);
    client.write(in, packed(rows));
    client.require(
        client.launch("tensor_products", {out, in}, client.stream, 59),
        "launch");
    const std::vector<float> sums = client.read(out, 1024);
    std::fill(rows.begin() + 59, rows.end(), std::array<float, 16>{});
    for (size_t i = 0; i < 2 * 256; ++i) {
      const size_t warp = i / 256, row = i / 16 % 16, column = i % 16;
      const auto *a = &rows[warp * 32], *b = a + 16;
      float product[2] = {};
      for (size_t k = 0; k < 16; ++k) {
        product[0] += a[row][k] * b[column][k];
        product[1] += a[row][k] * b[k][column];
      }
      for (size_t number = 0; number < 2; ++number)
        if (elementOf(sums, warp, number, row, column) != product[number])
          return false;
    }
    return true;
  }));
}

TEST(TensorCore, AMissingWaitShows) {
  EXPECT_TRUE(inProcess({}, [] {
    Client client;
    const CUdeviceptr in = client.allocate(64), out = client.allocate(64);
    client.write(in, std::vector<float>(64, 1.0f));
    client.require(client.launch("copy_without_wait", {out, in}, client.stream),
                   "launch");
    for (float value : client.read(out, 64))
      if (!std::isnan(value))
        return false;
    return true;
  }));
}

TEST(TensorCore, RoundsAndRaises) {
  EXPECT_TRUE(inProcess({}, [] {
    std::vector<float> values(64);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = (float(i) - 40) * 0.7123f;
    Client client;
    const CUdeviceptr in = client.allocate(64), out = client.allocate(192);
    client.write(in, values);
    client.require(
        client.launch("tensor_conversions", {out, in}, client.stream),
        "launch");
    const std::vector<float> got = client.read(out, 192);
    bool isRight = true;
    for (size_t i = 0; i < values.size(); ++i) {
      const float rounded = qlora_bf16_to_f32(qlora_f32_to_bf16(values[i]));
      const double power = std::exp2(double(values[i]));
      isRight &= got[2 * i] == rounded && got[2 * i + 1] == -rounded;
      isRight &= std::abs(got[128 + i] - power) <= 0x1p-22 * power;
    }
    return isRight;
  }));
}
