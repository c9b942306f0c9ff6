// SPDX-License-Identifier: MIT

// Dot products of few rows with rows of a weight, for matmuls that stream the
// weight once.
//
// A dot product has 32 lanes: lane i adds the products of the elements i, i +
// 32, i + 64, ... in this order, and the lanes are added pairwise at the end.
// So its bits do not depend on other rows, outputs, or threads. They depend on
// whether the CPU has fused multiply-adds.

#ifndef QLORA_RUNTIME_KERNELS_CPU_ROWDOTS_H
#define QLORA_RUNTIME_KERNELS_CPU_ROWDOTS_H

#include "runtime/Kernels/Plans/Workspaces.h"

namespace qlora {

/// Dot products of up to kMostRows rows x with kTile rows w. Elements come in
/// runs of at most kRun, which stay in a core's first cache.
class RowDots {
public:
  static constexpr int64_t kLanes = plans::StreamedPlan::kLanes;
  static constexpr int64_t kTile = plans::StreamedPlan::kTile;
  static constexpr int64_t kMostRows = plans::StreamedPlan::kMostRows;
  static constexpr int64_t kRun = 512;

  explicit RowDots(int64_t rows) : rows(rows) {}

  /// Returns where the caller writes the next elements of row `index` of w.
  float *weights(int64_t index) { return w[index]; }
  void clear();
  /// Adds the products of the weights with `count` elements of the rows of x,
  /// which are `ldx` apart; `count` is a multiple of kLanes.
  void add(const float *x, int64_t ldx, int64_t count);
  /// Returns the dot product of a row with row `index` of w.
  float sum(int64_t row, int64_t index) const {
    return sumOfLanes(sums[row][index]);
  }
  static float sumOfLanes(const float *lanes);
  /// sums[i] := the sum of the i-th kLanes lanes, with the same bits.
  static void sumsOfLanes(const float *lanes, int64_t count, float *sums);

private:
  int64_t rows;
  alignas(64) float w[kTile][kRun];
  alignas(64) float sums[kMostRows][kTile][kLanes];
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_ROWDOTS_H
