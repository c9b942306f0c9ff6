// SPDX-License-Identifier: MIT

// Computes offsets, sizes and overlaps of matrices in memory.

#include "compiler/Memory/MemoryPlace.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

static int64_t elementBytes(RankedTensorType type) {
  return type.getElementTypeBitWidth() / 8;
}

int64_t qlora::spanBytes(RankedTensorType type, int64_t stride) {
  int64_t columns = matrixColumns(type);
  if (stride == columns || type.getRank() < 2)
    return tensorBytes(type);
  return ((matrixRows(type) - 1) * stride + columns) * elementBytes(type);
}

MemoryPlace qlora::placeWithin(const MemoryPlace &whole,
                               const MemoryRange &part) {
  auto type = cast<RankedTensorType>(part.part.getType());
  int64_t elements = part.row * whole.stride + part.column;
  return {whole.root, whole.offset + elements * elementBytes(type),
          whole.stride};
}

bool qlora::overlap(RankedTensorType a, const MemoryPlace &atA,
                    RankedTensorType b, const MemoryPlace &atB) {
  if (atA.offset + spanBytes(a, atA.stride) <= atB.offset ||
      atB.offset + spanBytes(b, atB.stride) <= atA.offset)
    return false;
  int64_t row = atA.stride * elementBytes(a);
  if (row != atB.stride * elementBytes(b))
    return true;
  int64_t columnA = atA.offset % row, columnB = atB.offset % row;
  return columnA < columnB + matrixColumns(b) * elementBytes(b) &&
         columnB < columnA + matrixColumns(a) * elementBytes(a);
}
