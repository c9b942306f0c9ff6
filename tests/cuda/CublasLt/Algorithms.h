// SPDX-License-Identifier: MIT

// The algorithms that the cuBLASLt look-alike has. Each takes its own time,
// which is simulated (Hook.h), and rounds its own way, so that a test sees
// which one ran:
//
//   id 21   operands at multiples of 16 bytes; tiles 15, 18 and 20
//   id 10   any operands; tiles 1 and 2
//   id 66   operands at multiples of 16 bytes; kernels that no attribute tells
//           apart, as Hopper's are. Mostly the fastest. Of kernel 2 nothing is
//           told; 3 passes the check but cannot run, and 4 cannot in a capture
//
// 21 and 10 either without a split of k or split into two or three, with each
// of cuBLASLt's reduction schemes. "In place" takes the least time of all, and
// adds the parts in an order that differs from run to run.
//
// An algorithm is for the one product that the heuristic found it for, and for
// one version of the library.

#ifndef QLORA_TESTS_CUDA_CUBLASLT_ALGORITHMS_H
#define QLORA_TESTS_CUDA_CUBLASLT_ALGORITHMS_H

#include "tests/cuda/CublasLt/Objects.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace qlora::platform {

/// What cublasLtMatmulAlgo_t holds. The attributes are where version 13.1 has
/// them: in half of the bytes.
struct Algorithm {
  uint32_t id = 0, tile = 0, stages = 0, split = 1;
  uint32_t reduction = kCublasReductionNone, swizzle = 0, custom = 0;
  uint16_t innerShape = 0, clusterShape = 0;
  uint64_t mark = 0;    ///< of this library and its version
  uint64_t product = 0; ///< hash
  uint64_t kernel = 0;  ///< of id 66
  uint64_t alignments = 0; ///< logarithms, a byte each, A's the lowest

  /// Nothing where these are not the bytes of an algorithm of this version.
  static std::optional<Algorithm> read(const cublasLtMatmulAlgo_t *bytes);
  cublasLtMatmulAlgo_t bytes() const;
};
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));

/// The kernels of id 66.
inline constexpr uint64_t kPlainKernel = 1, kSilentKernel = 2,
                          kUnsupportedKernel = 3, kUncapturedKernel = 4;

uint64_t hashOf(const Product &product);
uint64_t hashOf(const Algorithm &algorithm);
/// Four logarithms in a byte each.
uint64_t packAlignments(const uint32_t (&alignments)[4]);
/// Bytes that every operand of an algorithm must be aligned to.
uint32_t alignmentOf(const Algorithm &algorithm, int type);

/// Empty, or why there is no such algorithm for the product.
std::string refusalOf(const Algorithm &algorithm, const Product &product);
uint64_t workspaceOf(const Algorithm &algorithm, const Product &product);
std::chrono::nanoseconds timeOf(const Algorithm &algorithm,
                                const Product &product);
/// All that there are for a product, best first by an estimate that knows
/// nothing of their times.
std::vector<Algorithm> algorithmsFor(const Product &product);

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_CUBLASLT_ALGORITHMS_H
