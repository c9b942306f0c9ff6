// SPDX-License-Identifier: MIT

// Low-rank factors of a matrix W on the host, so that scale * B A is about W.
//
// Singular vectors are unique up to their signs and the order of equal values,
// so compare the product B A with other implementations. Signs do not affect
// training: negating a row of A and the same column of B also negates their
// gradients and updates.

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

/// Returns factors from the `rank` largest singular values s and their vectors.
/// A and B are each multiplied by the square roots of s / scale. These are
/// PiSSA's factors (Meng et al., 2024), or LoftQ's if scale is 1. Computes in
/// double and needs ten times the memory of W.
LowRank largestFactors(const WholeMatrix &w, int64_t rank, double scale);

/// Approximates largestFactors() by subspace iteration (Halko et al., 2011,
/// algorithm 4.4) from `start`, [columns, rank], like torch.svd_lowrank.
LowRank nearLargestFactors(const WholeMatrix &w, int64_t rank, double scale,
                           int64_t iterations, std::span<const float> start);

/// Returns OLoRA's factors (Buyukakyuz, 2024) from the QR of W: B has the first
/// columns of Q, and A the first rows of R. OLoRA subtracts scale * B A from W.
LowRank orthogonalFactors(const WholeMatrix &w, int64_t rank);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_LOWRANK_H
