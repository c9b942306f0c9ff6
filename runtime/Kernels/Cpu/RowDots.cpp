// SPDX-License-Identifier: MIT

// Products are tiles of rows and outputs whose lanes are in registers. A tile
// has eight vectors of sums, which hides the latency of additions, and computes
// a part of the lanes at a time.

#include "runtime/Kernels/Cpu/RowDots.h"

#include <cstring>

#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora {

namespace {

/// The vector extension of GCC and clang works on all instruction sets.
using Eight = float __attribute__((vector_size(32)));
constexpr int64_t kWidth = sizeof(Eight) / sizeof(float);

using LaneSums = float[RowDots::kTile][RowDots::kLanes];

/// A tile's operands: the first row of x, the first row of w, and the sums of
/// the row of x with all rows of w.
struct TileOperands {
  const float *x;
  int64_t ldx;
  const float *w;
  int64_t count;
  LaneSums *sums;
};

} // namespace

/// Adds the products of `Rows` rows of x and `Outputs` rows of w, from output
/// `first` on, to `Vectors` vectors of lanes, from `lane` on.
template <int Rows, int Outputs, int Vectors>
static inline __attribute__((always_inline)) void
addLanes(const TileOperands &p, int64_t first, int64_t lane) {
  Eight sums[Rows][Outputs][Vectors];
  QLORA_UNROLLED for (int r = 0; r < Rows; ++r)
    QLORA_UNROLLED for (int o = 0; o < Outputs; ++o)
      QLORA_UNROLLED for (int v = 0; v < Vectors; ++v)
        std::memcpy(&sums[r][o][v], &p.sums[r][first + o][lane + v * kWidth],
                    sizeof(Eight));
  const float *const w = p.w + first * RowDots::kRun;
  for (int64_t i = lane; i < p.count; i += RowDots::kLanes)
    QLORA_UNROLLED for (int v = 0; v < Vectors; ++v) {
      Eight weights[Outputs];
      QLORA_UNROLLED for (int o = 0; o < Outputs; ++o)
        std::memcpy(&weights[o], w + o * RowDots::kRun + i + v * kWidth,
                    sizeof(Eight));
      QLORA_UNROLLED for (int r = 0; r < Rows; ++r) {
        Eight values;
        std::memcpy(&values, p.x + r * p.ldx + i + v * kWidth, sizeof(Eight));
        QLORA_UNROLLED for (int o = 0; o < Outputs; ++o)
          sums[r][o][v] += values * weights[o];
      }
    }
  QLORA_UNROLLED for (int r = 0; r < Rows; ++r)
    QLORA_UNROLLED for (int o = 0; o < Outputs; ++o)
      QLORA_UNROLLED for (int v = 0; v < Vectors; ++v)
        std::memcpy(&p.sums[r][first + o][lane + v * kWidth], &sums[r][o][v],
                    sizeof(Eight));
}

template <int Rows, int Outputs, int Vectors>
static inline __attribute__((always_inline)) void
addTile(const TileOperands &p) {
  for (int64_t first = 0; first < RowDots::kTile; first += Outputs)
    for (int64_t lane = 0; lane < RowDots::kLanes; lane += Vectors * kWidth)
      addLanes<Rows, Outputs, Vectors>(p, first, lane);
}

QLORA_VECTOR static void addFour(const TileOperands &p) {
  addTile<4, 2, 1>(p);
}
QLORA_VECTOR static void addTwo(const TileOperands &p) { addTile<2, 4, 1>(p); }
QLORA_VECTOR static void addOne(const TileOperands &p) { addTile<1, 4, 2>(p); }

void RowDots::clear() { std::memset(sums, 0, sizeof(LaneSums) * size_t(rows)); }

void RowDots::add(const float *x, int64_t ldx, int64_t count) {
  int64_t row = 0;
  const auto operands = [&] {
    return TileOperands{x + row * ldx, ldx, w[0], count, sums + row};
  };
  for (; row + 4 <= rows; row += 4)
    addFour(operands());
  for (; row + 2 <= rows; row += 2)
    addTwo(operands());
  if (row < rows)
    addOne(operands());
}

/// Returns the sums of a row's lanes of equal index modulo kWidth.
static inline Eight sumOfParts(const float *lanes) {
  static_assert(RowDots::kLanes == 4 * kWidth);
  Eight parts[4];
  QLORA_UNROLLED for (int i = 0; i < 4; ++i)
    std::memcpy(&parts[i], lanes + i * kWidth, sizeof(Eight));
  return (parts[0] + parts[2]) + (parts[1] + parts[3]);
}

static inline float sumOfEight(Eight sums) {
  float half[kWidth / 2];
  for (int i = 0; i < kWidth / 2; ++i)
    half[i] = sums[i] + sums[i + kWidth / 2];
  return (half[0] + half[2]) + (half[1] + half[3]);
}

/// Adds lanes of a, then of b, that are four, two and one apart.
static inline Eight addFours(Eight a, Eight b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) +
         __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
}
static inline Eight addTwos(Eight a, Eight b) {
  return __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13) +
         __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15);
}
static inline Eight addOnes(Eight a, Eight b) {
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14) +
         __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
}

QLORA_VECTOR float RowDots::sumOfLanes(const float *lanes) {
  return sumOfEight(sumOfParts(lanes));
}

QLORA_VECTOR void RowDots::sumsOfLanes(const float *lanes, int64_t count,
                                       float *sums) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    Eight rows[kWidth];
    QLORA_UNROLLED for (int64_t row = 0; row < kWidth; ++row)
      rows[row] = sumOfParts(lanes + (i + row) * kLanes);
    const Eight low = addTwos(addFours(rows[0], rows[1]),
                              addFours(rows[2], rows[3]));
    const Eight high = addTwos(addFours(rows[4], rows[5]),
                               addFours(rows[6], rows[7]));
    const Eight all = addOnes(low, high);
    std::memcpy(sums + i, &all, sizeof all);
  }
  for (; i < count; ++i)
    sums[i] = sumOfEight(sumOfParts(lanes + i * kLanes));
}

} // namespace qlora
