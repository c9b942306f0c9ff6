// SPDX-License-Identifier: MIT

// Which results may take over an operand (Overwrite.h).

#include "compiler/Graph/Overwrite.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

/// True for a buffer that nothing else is a part of.
static bool ownsMemory(Value operand) {
  Operation *maker = operand.getDefiningOp();
  return maker && isa<RowOp, LibraryOp>(maker) &&
         llvm::none_of(operand.getUsers(), llvm::IsaPred<ViewOp>);
}

/// True for a result that is written into something larger.
static bool isPart(Value result) {
  return llvm::any_of(result.getUsers(), [](Operation *user) {
    auto view = dyn_cast<ViewOp>(user);
    return view && view.getWhole().getDefiningOp() == user;
  });
}

SmallVector<Overwrite> qlora::overwritesOf(Operation *op) {
  SmallVector<Overwrite> found;
  auto add = [&](Value operand, Value result) {
    if (ownsMemory(operand) && !isPart(result))
      found.push_back({operand, result});
  };
  auto library = dyn_cast<LibraryOp>(op);
  if (library && op->getNumResults() == 1)
    if (OpOperand *tied = library.getTiedOperand(0))
      add(tied->get(), op->getResult(0));
  auto rows = dyn_cast<RowOp>(op);
  if (!rows)
    return found;
  SmallVector<MapAttr> maps = rows.getRowMaps();
  // What another map reads may be read for a row that comes later.
  auto isReadInOtherWays = [&](Value operand) {
    for (auto [other, map] : llvm::zip_equal(op->getOperands(), maps))
      if (other == operand && map.getKind() != MapKind::Full)
        return true;
    return false;
  };
  for (Value result : op->getResults())
    for (auto [operand, map] : llvm::zip_equal(op->getOperands(), maps))
      if (map.getKind() == MapKind::Full &&
          operand.getType() == result.getType() &&
          !isReadInOtherWays(operand))
        add(operand, result);
  return found;
}
