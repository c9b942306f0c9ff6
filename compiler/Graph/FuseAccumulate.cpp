// SPDX-License-Identifier: MIT

// fuse-accumulate: sums of gradients happen inside the ops that produce them.
//
//   %1 = model.linear %dy, %w layout in_out      // dy . W
//   %2 = model.add %0, %1
//
// becomes
//
//   %2 = model.linear %dy, %w layout in_out init %0

#include "compiler/Graph/Accumulate.h"
#include "compiler/Passes.h"
#include "dialects/Train/Train.h"
#include "runtime/Kernels/KernelTable.h"

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
    if (!op || op.getAccumulator() || !other.hasOneUse() ||
        !base.hasOneUse() || base.getType() != other.getType() ||
        !isBase(base))
      continue;
    // The base may be computed after the op: at the add both are there.
    op->moveBefore(add);
    op.setAccumulator(base);
    add.getResult().replaceAllUsesWith(other);
    add.erase();
    return true;
  }
  return false;
}

bool qlora::isAddedInPlace(Value value) {
  auto library = value.getDefiningOp<model::LibraryOp>();
  if (!library || !value.hasOneUse() ||
      !isa<train::AccumulateOp>(*value.user_begin()))
    return false;
  if (auto op = dyn_cast<AccumulatingOp>(library.getOperation()))
    return !op.getAccumulator();
  model::KernelCall call = library.getKernelCall();
  const KernelOp *kernel = findKernelOp(call.op.str());
  unsigned number = cast<OpResult>(value).getResultNumber();
  for (auto [operand, argument] :
       llvm::zip_equal(kernel->operands, call.arguments))
    if (argument.kind == model::KernelArgument::Result &&
        argument.index == number)
      return operand.isRead && operand.isWritten;
  return false;
}

namespace {
class FuseAccumulatePass
    : public qlora::impl::FuseAccumulateBase<FuseAccumulatePass> {
  void runOnOperation() override {
    // Only sums that reverse mode made: a residual is read again later.
    for (auto step : getOperation().getOps<train::StepOp>())
      for (auto add : llvm::make_early_inc_range(
               step.getBody().getOps<model::AddOp>()))
        if (add->hasAttr(train::kBackwardAttr))
          fuseAdd(add, [](Value) { return true; });
  }
};
} // namespace
