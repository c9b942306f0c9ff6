// SPDX-License-Identifier: MIT

// fuse-accumulate: moves sums of gradients into the ops that compute them.
//
//   %1 = model.linear %dy, %w layout in_out      // dy . W
//   %2 = model.add %0, %1
//
// becomes
//
//   %2 = model.linear %dy, %w layout in_out init %0

#include "compiler/Differentiate/Accumulate.h"
#include "compiler/Passes.h"
#include "dialects/Train/Train.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_FUSEACCUMULATE
#include "compiler/Passes.h.inc"
} // namespace qlora

bool qlora::fuseAdd(model::AddOp add, function_ref<bool(Value)> isBase) {
  for (auto [base, other] : {std::pair(add.getA(), add.getB()),
                             std::pair(add.getB(), add.getA())}) {
    auto op = other.getDefiningOp<AccumulatingOp>();
    if (!op || op.getAccumulator() || !other.hasOneUse() || !base.hasOneUse() ||
        base.getType() != other.getType() || !isBase(base))
      continue;
    // Move the op, because the base may be computed after it.
    op->moveBefore(add);
    op.setAccumulator(base);
    add.getResult().replaceAllUsesWith(other);
    add.erase();
    return true;
  }
  return false;
}

void qlora::moveAhead(Operation *op, Operation *user) {
  if (op->isBeforeInBlock(user))
    return;
  op->moveBefore(user);
  for (Value operand : op->getOperands())
    if (Operation *maker = operand.getDefiningOp())
      moveAhead(maker, op);
}

namespace {
class FuseAccumulatePass
    : public qlora::impl::FuseAccumulateBase<FuseAccumulatePass> {
  void runOnOperation() override {
    // Skip sums of the forward: they add to a residual that later ops read, so
    // it cannot be overwritten.
    for (auto add : llvm::make_early_inc_range(
             getOperation().getBody().getOps<model::AddOp>()))
      if (model::isBackward(add))
        fuseAdd(add, [](Value) { return true; });
  }
};
} // namespace
