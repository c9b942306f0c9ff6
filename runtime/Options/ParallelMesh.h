// SPDX-License-Identifier: MIT

// How ranks share a model: the axes of a mesh, as in --parallel.
//
//   --parallel fsdp=4     shards the base over each 4 consecutive ranks (best
//                         on one machine)
//   --parallel zero1=4    shards optimizer states and their updates
//   --parallel zero2=4    zero1, and shards trainable parameters and gradients
//   --parallel fsdp=4,zero1=4  shards the base and optimizer states
//   --parallel tp=4       shards each matmul over 4 ranks with the same rows
//   --parallel cp=4       shards each sequence over 4 ranks with the same rows
//   --parallel fsdp=8,cp=4  shards the base over two cp groups of 4 ranks
//   --parallel ep=4       shards each layer's experts over 4 consecutive ranks
//   --parallel ep=4,fsdp=4  ep, and shards the other weights of the base
//   --parallel pp=4       divides the layers among 4 ranks with the same rows
//   --parallel pp=2,fsdp=4  shards each half of the layers over 4 ranks
//   --parallel auto       the compiler chooses: compiler/Search/LayoutSearch.h
//
// A run with more ranks repeats the mesh for data parallelism: 8 ranks with
// fsdp=4 are two groups. Ranks of one tp, cp or pp group have the same rows;
// all others have their own. ABI/Enums.def defines the ranks of a group.

#ifndef QLORA_RUNTIME_OPTIONS_PARALLELMESH_H
#define QLORA_RUNTIME_OPTIONS_PARALLELMESH_H

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Options/GroupSizes.h"

namespace qlora {

/// The value of --parallel that selects among candidates().
inline constexpr std::string_view kAutoParallel = "auto";

/// A mesh of one rank, unless axes are set.
struct ParallelMesh : qlora_mesh {
  ParallelMesh() = default;
  explicit ParallelMesh(const qlora_mesh &mesh) : qlora_mesh(mesh) {}

  /// Parses "fsdp=4"; "" or "none" is a mesh of one rank. kInvalidArgument
  /// names an axis that is unknown, unsupported, given twice or without a
  /// number, or two axes that cannot be combined or have conflicting sizes.
  static StatusOr<ParallelMesh> parse(std::string_view text);

  /// Returns meshes for a run of `ranks` ranks, the simplest first. Their axes
  /// are fsdp, zero1, zero2 and ep. Ranks of these axes have different rows, so
  /// all meshes have the same global batch. zero2 requires `trainsModel`.
  /// `experts`: the number of experts of each layer, or the common divisor of
  /// the numbers if layers differ; 0: no experts.
  static std::vector<ParallelMesh>
  candidates(int64_t ranks, bool trainsModel = false, int64_t experts = 0);

  /// Returns the text that parse() reads.
  std::string text() const;
  /// Fails if a size is out of range, or if two axes cannot be combined or have
  /// conflicting sizes.
  Status check() const;
  /// Sizes of the groups of ranks in one mesh.
  GroupSizes groups() const { return GroupSizes(*this); }
  /// Ranks that share the same rows.
  int64_t rowRanks() const { return groups().rowRanks(); }
  /// Ranks of one mesh; the remaining ranks of a run are data-parallel.
  int64_t size() const { return groups().meshSize(); }
  /// Checks that `ranks` is a multiple of the mesh's size. `subject`: start of
  /// the error, such as "'train.so'" or "--parallel fsdp=4".
  Status checkRanks(std::string_view subject, int64_t ranks) const;
};

} // namespace qlora

#endif // QLORA_RUNTIME_OPTIONS_PARALLELMESH_H
