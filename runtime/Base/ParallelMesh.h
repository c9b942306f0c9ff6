// SPDX-License-Identifier: MIT

// How ranks share a model: the axes of a mesh, as --parallel says it.
//
//   --parallel fsdp=4     the base in pieces, among every four ranks that follow
//                         each other (of one machine, best)
//   --parallel zero1=4    what optimizers keep, and their work, in such pieces
//   --parallel zero2=4    these, and what is trained with its gradients
//   --parallel fsdp=4,zero1=4  both
//   --parallel tp=4       each product, among four that have the same rows
//   --parallel cp=4       each line's tokens, among four that have the same rows
//   --parallel fsdp=8,cp=4  pieces, among two such fours
//   --parallel ep=4       the experts of each layer, among four that follow each
//                         other
//   --parallel ep=4,fsdp=4  these, and the rest of the base in pieces
//   --parallel pp=4       the layers, among four that have the same rows
//   --parallel pp=2,fsdp=4  pieces of each half of them, among four
//   --parallel auto       the compiler chooses: tools/qloracc/LayoutSearch.h
//
// What is left of the ranks of a run is data parallel: 8 ranks of fsdp=4 are two
// such groups. All have rows of their own, but for those of one group of tp, cp
// or pp. Which ranks a group has is in ABI/Enums.def.

#ifndef QLORA_RUNTIME_BASE_PARALLELMESH_H
#define QLORA_RUNTIME_BASE_PARALLELMESH_H

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

/// The value of --parallel that stands for candidates().
inline constexpr std::string_view kAutoParallel = "auto";

struct ParallelMesh {
  int64_t shards = 1; ///< fsdp: ranks that hold a base together
  int64_t updatePieces = 1; ///< zero1: ranks that divide the updates
  int64_t trainedPieces = 1; ///< zero2: ranks that divide what is trained
  int64_t tensorRanks = 1;  ///< tp: ranks that share each product
  int64_t contextRanks = 1; ///< cp: ranks that share each line
  int64_t expertRanks = 1;  ///< ep: ranks that share the experts of each layer
  int64_t stages = 1; ///< pp: ranks that have a part of the layers each

  /// "fsdp=4", or "" or "none" for a mesh of one. kInvalidArgument names the
  /// axis that is unknown, not there yet, given twice or no number, or two axes
  /// whose numbers do not go together, or that are not there together.
  static StatusOr<ParallelMesh> parse(std::string_view text);

  /// Every mesh that `ranks` ranks can have and that leaves each its own rows,
  /// so that a step is the same; the simplest first. What is trained is worth
  /// dividing where it is the model itself; of layers with `experts` of them,
  /// or several such numbers' common divisor, ranks can share these.
  static std::vector<ParallelMesh> candidates(int64_t ranks,
                                              bool trainsModel = false,
                                              int64_t experts = 0);

  /// As parse() reads it.
  std::string text() const;
  /// Ranks that have the same rows.
  int64_t rowRanks() const { return tensorRanks * contextRanks * stages; }
  /// Ranks that work together: what is left of a run's is data parallel.
  int64_t size() const;
  /// Whether `ranks` ranks can run this mesh: they are a multiple of its size.
  /// `subject` is what the error is about: "'train.so'", "--parallel fsdp=4".
  Status checkRanks(std::string_view subject, int64_t ranks) const;
};

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_PARALLELMESH_H
