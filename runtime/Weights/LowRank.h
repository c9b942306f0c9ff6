// SPDX-License-Identifier: MIT

// Factors of a matrix, with Eigen on the host: W is about scale * B A.
//
// Singular vectors are unique up to their signs (and the order of equal
// values), so B A is what may be compared with others. A training does not
// see signs: where a row of A and the column of B have another sign, their
// gradients and AdamW's updates have it too.

#ifndef QLORA_RUNTIME_WEIGHTS_LOWRANK_H
#define QLORA_RUNTIME_WEIGHTS_LOWRANK_H

#include <cstdint>
#include <span>
#include <vector>

namespace qlora {

/// W is [rows, columns]; where `isTurned`, `values` have its transpose.
struct WholeMatrix {
  std::span<const float> values;
  int64_t rows, columns;
  bool isTurned = false;
};

/// Row-major: A [rank, columns], B [rows, rank].
struct LowRank {
  std::vector<float> a, b;
};

/// The largest singular values (at most as many as W has), shared by A and B
/// as roots of s / scale: PiSSA's (Meng et al., 2024), and with scale 1
/// LoftQ's. Computed in double, in ten times the memory of W.
LowRank largestFactors(const WholeMatrix &w, int64_t rank, double scale);

/// The same by subspace iteration (Halko et al., 2011, algorithm 4.4), from
/// `start`, [columns, rank], and without oversampling, as torch.svd_lowrank.
LowRank nearLargestFactors(const WholeMatrix &w, int64_t rank, double scale,
                           int64_t iterations, std::span<const float> start);

/// The first columns of Q and rows of R of a QR: OLoRA's (Buyukakyuz, 2024),
/// of which scale * B A is taken from W.
LowRank orthogonalFactors(const WholeMatrix &w, int64_t rank);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_LOWRANK_H
