// SPDX-License-Identifier: MIT

// The algorithms of the cuBLASLt look-alike. Each has its own simulated time
// (Hook.h) and rounding, so that a test can detect which one ran:
//
//   id 21   operands at multiples of 16 bytes; tiles 15, 18 and 20
//   id 10   any operands; tiles 1 and 2
//   id 66   operands at multiples of 16 bytes; kernels that no attribute
//           distinguishes, as on Hopper. Mostly the fastest. Kernel 2 reports
//           nothing; 3 passes the check but cannot run, and 4 cannot run in a
//           capture
//
// Ids 21 and 10 split k into one, two or three ranges, with each of cuBLASLt's
// reduction schemes. The scheme "in place" is the fastest. It adds the partial
// sums in an order that differs from run to run.
//
// An algorithm is valid only for the matmul for which the heuristic returned
// it, and only for one version of the library.

#ifndef QLORA_TESTS_CUDA_CUBLASLT_ALGORITHMS_H
#define QLORA_TESTS_CUDA_CUBLASLT_ALGORITHMS_H

#include "tests/cuda/CublasLt/Objects.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace qlora::platform {

/// Contents of cublasLtMatmulAlgo_t. As in version 13.1, the attributes are in
/// the first half of the bytes.
struct Algorithm {
  uint32_t id = 0, tile = 0, stages = 0, split = 1;
  uint32_t reduction = kCublasReductionNone, swizzle = 0, custom = 0;
  uint16_t innerShape = 0, clusterShape = 0;
  uint64_t mark = 0;    ///< identifies this library and its version
  uint64_t product = 0; ///< hash of the matmul
  uint64_t kernel = 0;  ///< kernel of id 66
  uint64_t alignments = 0; ///< log2 per operand, a byte each, A's the lowest

  /// Returns nothing if the bytes are not an algorithm of this version.
  static std::optional<Algorithm> read(const cublasLtMatmulAlgo_t *bytes);
  cublasLtMatmulAlgo_t bytes() const;
};
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));

/// The kernels of id 66.
inline constexpr uint64_t kPlainKernel = 1, kSilentKernel = 2,
                          kUnsupportedKernel = 3, kUncapturedKernel = 4;

uint64_t hashOf(const Product &product);
uint64_t hashOf(const Algorithm &algorithm);
/// Packs the base-2 logarithms of four alignments, a byte each.
uint64_t packAlignments(const uint32_t (&alignments)[4]);
/// Returns the alignment in bytes that every operand of the algorithm must
/// have.
uint32_t alignmentOf(const Algorithm &algorithm, int type);

/// Returns why the algorithm cannot compute the matmul; empty if it can.
std::string refusalOf(const Algorithm &algorithm, const Product &product);
uint64_t workspaceOf(const Algorithm &algorithm, const Product &product);
std::chrono::nanoseconds timeOf(const Algorithm &algorithm,
                                const Product &product);
/// Returns all algorithms for a matmul, best first according to an estimate
/// that ignores their simulated times.
std::vector<Algorithm> algorithmsFor(const Product &product);

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_CUBLASLT_ALGORITHMS_H
