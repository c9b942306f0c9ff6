// SPDX-License-Identifier: MIT

// Factors of a matrix W, from Eigen on the host: W is about scale * B A.
//
// Singular vectors are unique up to their signs and the order of equal values,
// so compare B A with other implementations. Signs do not affect training:
// opposite signs in a row of A and the column of B also negate their gradients
// and updates.

#ifndef QLORA_RUNTIME_WEIGHTS_LOWRANK_H
#define QLORA_RUNTIME_WEIGHTS_LOWRANK_H

#include <cstdint>
#include <span>
#include <vector>

namespace qlora {

/// W is [rows, columns]; if `isTransposed`, `values` has its transpose.
struct WholeMatrix {
  std::span<const float> values;
  int64_t rows, columns;
  bool isTransposed = false;
};

/// The factors, row-major: A [rank, columns], B [rows, rank].
struct LowRank {
  std::vector<float> a, b;
};

/// Returns factors from the largest singular values s and their vectors (at
/// most as many as W has). A and B each contain the square roots of s / scale:
/// PiSSA's factors (Meng et al., 2024), or LoftQ's if scale is 1. Computes in
/// double and needs ten times the memory of W.
LowRank largestFactors(const WholeMatrix &w, int64_t rank, double scale);

/// Approximates largestFactors() by subspace iteration (Halko et al., 2011,
/// algorithm 4.4) from `start`, [columns, rank], like torch.svd_lowrank.
LowRank nearLargestFactors(const WholeMatrix &w, int64_t rank, double scale,
                           int64_t iterations, std::span<const float> start);

/// Returns the first columns of Q and rows of R of a QR: OLoRA's factors
/// (Buyukakyuz, 2024). OLoRA subtracts scale * B A from W.
LowRank orthogonalFactors(const WholeMatrix &w, int64_t rank);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_LOWRANK_H
