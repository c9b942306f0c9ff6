// SPDX-License-Identifier: MIT

// Where a value of a step is: a matrix in the memory of a root, with room
// between its rows where it is a range of something wider.

#ifndef QLORA_COMPILER_GRAPH_MEMORYPLACE_H
#define QLORA_COMPILER_GRAPH_MEMORYPLACE_H

#include "dialects/Model/Model.h"

namespace qlora {

struct MemoryPlace {
  unsigned root = 0;  ///< number of a MemoryRoot (StepMemory.h)
  int64_t offset = 0; ///< bytes
  int64_t stride = 0; ///< elements from one row to the next

  bool operator==(const MemoryPlace &) const = default;
};

/// Bytes from the first element to the last of a matrix with such rows.
int64_t spanBytes(mlir::RankedTensorType type, int64_t stride);

/// The place of `part` in a whole at `whole`.
MemoryPlace placeWithin(const MemoryPlace &whole,
                        const model::MemoryPart &part);

/// Whether two matrices in one root may have a byte in common. Columns of rows
/// that are equally far apart are told apart.
bool overlap(mlir::RankedTensorType a, const MemoryPlace &atA,
             mlir::RankedTensorType b, const MemoryPlace &atB);

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_MEMORYPLACE_H
