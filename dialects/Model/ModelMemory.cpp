// SPDX-License-Identifier: MIT

// Implementations of MemoryOp (ModelInterfaces.td).

#include "dialects/Model/Model.h"

using namespace mlir;
using namespace qlora::model;

bool OutsideMemory::overlaps(const OutsideMemory &other) const {
  auto arena = [](MemorySpace space) {
    return space == MemorySpace::Weight ? MemorySpace::Trainable : space;
  };
  return arena(space) == arena(other.space) &&
         (!name || !other.name || name == other.name) &&
         (!part || !other.part || part.meets(other.part)) &&
         (!rows || !other.rows ||
          (row < other.row + other.rows * other.pieces &&
           other.row < row + rows * pieces));
}

SmallVector<MemoryTie> qlora::model::tiesOf(Operation *op) {
  SmallVector<MemoryTie> ties;
  if (auto sum = dyn_cast<AccumulatingOp>(op))
    if (OpOperand *init = sum.getAccumulatorUse())
      ties.push_back({init, op->getResult(0), /*continues=*/true});
  auto rows = dyn_cast<RowOp>(op);
  if (!rows)
    return ties;
  SmallVector<MapAttr> maps = rows.getRowMaps();
  auto isReadByRows = [&](Value operand) {
    return llvm::all_of(
        llvm::zip_equal(op->getOperands(), maps), [&](auto pair) {
          auto [other, map] = pair;
          return other != operand || map.getKind() == MapKind::Full;
        });
  };
  for (OpResult result : op->getResults())
    for (OpOperand &operand : op->getOpOperands())
      if (operand.get().getType() == result.getType() &&
          isReadByRows(operand.get()))
        ties.push_back({&operand, result, /*continues=*/false});
  return ties;
}

bool qlora::model::isView(Operation *op) {
  auto memory = dyn_cast<MemoryOp>(op);
  return memory && !memory.getMemoryRanges().empty();
}

std::optional<OutsideMemory> WeightOp::getOutsideMemory() {
  return OutsideMemory{getRounded() ? MemorySpace::Rounded
                                    : MemorySpace::Weight,
                       getParameterAttr(), 0, 0, 1, getPartAttr()};
}

/// Lays out the parts in `whole`, one after another by columns or by rows.
static SmallVector<MemoryRange> partsOf(ValueRange parts, Value whole,
                                        bool byRows) {
  SmallVector<MemoryRange> found;
  int64_t row = 0, column = 0;
  for (Value part : parts) {
    found.push_back({part, whole, row, column});
    (byRows ? row : column) +=
        byRows ? matrixRows(tensorOf(part)) : columnsOf(part);
  }
  return found;
}
SmallVector<MemoryRange> SplitOp::getMemoryRanges() {
  return partsOf(getParts(), getWhole(), getRows());
}
SmallVector<MemoryRange> ConcatOp::getMemoryRanges() {
  return partsOf(getParts(), getWhole(), getRows());
}
