// SPDX-License-Identifier: MIT

// The location of a step's value in memory: a matrix inside a root. A root is a
// buffer of the step, or memory that exists outside of the step (weights,
// arenas). If the matrix is a column range of a wider one, its rows are not
// adjacent.

#ifndef QLORA_COMPILER_MEMORY_MEMORYPLACE_H
#define QLORA_COMPILER_MEMORY_MEMORYPLACE_H

#include "dialects/Model/Model.h"

namespace qlora {

struct MemoryPlace {
  unsigned root = 0;  ///< index of a MemoryRoot (StepMemory.h)
  int64_t offset = 0; ///< bytes
  int64_t stride = 0; ///< elements from one row to the next

  bool operator==(const MemoryPlace &) const = default;
};

/// Returns the bytes from the matrix's first element to its last.
int64_t spanBytes(mlir::RankedTensorType type, int64_t stride);

/// Returns the place of `part.part`; `whole` is the place of `part.whole`.
MemoryPlace placeWithin(const MemoryPlace &whole,
                        const model::MemoryRange &part);

/// Returns whether two matrices in one root may have a byte in common. Disjoint
/// column ranges of rows with equal strides have none.
bool overlap(mlir::RankedTensorType a, const MemoryPlace &atA,
             mlir::RankedTensorType b, const MemoryPlace &atB);

} // namespace qlora

#endif // QLORA_COMPILER_MEMORY_MEMORYPLACE_H
