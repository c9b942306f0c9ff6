// SPDX-License-Identifier: MIT

// The algorithms that the cuBLASLt look-alike has. Each takes its own time,
// which is simulated (Hook.h), and rounds its own way, so that a test sees
// which one ran:
//
//   id 21   operands at multiples of 16 bytes; tiles 15, 18 and 20
//   id 10   any operands; tiles 1 and 2
//
// either without a split of k or split into two or three, with each of
// cuBLASLt's reduction schemes. "In place" takes the least time of all, and
// adds the parts in an order that differs from run to run.
//
// An algorithm's words: a mark, its attributes, the types, and, where a
// heuristic found it, a hash of the product that it was found for and the
// alignments that were asked for. One that was made from its attributes is for
// any product that it was checked for.

#ifndef QLORA_TESTS_CUDA_CUBLASLT_ALGORITHMS_H
#define QLORA_TESTS_CUDA_CUBLASLT_ALGORITHMS_H

#include "tests/cuda/CublasLt/Objects.h"

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace qlora::platform {

/// By the number of cublasLtMatmulAlgoConfigAttributes_t.
enum Attribute : int {
  kId,
  kTile,
  kSplit,
  kReduction,
  kSwizzle,
  kCustom,
  kStages,
  kInnerShape,
  kClusterShape,
  kAttributeCount
};
using Attributes = std::array<uint32_t, kAttributeCount>;

/// What an algorithm's words say.
struct Algorithm {
  Attributes attributes = {};
  int input = 0, output = 0; ///< cudaDataType_t
  uint64_t product = 0;      ///< hash; 0: made from attributes
  uint64_t alignments = 0;   ///< logarithms, a byte each, A's the lowest

  static std::optional<Algorithm> read(const cublasLtMatmulAlgo_t &words);
  cublasLtMatmulAlgo_t words() const;
};

uint64_t hashOf(const Product &product);
uint64_t hashOf(const Algorithm &algorithm);
/// Four logarithms in a byte each.
uint64_t packAlignments(const uint32_t (&alignments)[4]);
/// Bytes that every operand of an algorithm must be aligned to.
uint32_t alignmentOf(const Attributes &attributes, int type);

/// Empty, or why there is no such algorithm for the product.
std::string refusalOf(const Attributes &attributes, const Product &product);
uint64_t workspaceOf(const Attributes &attributes, const Product &product);
std::chrono::nanoseconds timeOf(const Attributes &attributes,
                                const Product &product);
/// All that there are for a product, best first by an estimate that knows
/// nothing of their times.
std::vector<Attributes> algorithmsFor(const Product &product);

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_CUBLASLT_ALGORITHMS_H
