// SPDX-License-Identifier: MIT

// round-adapters: rounds trainable weights once per update instead of before
// every matmul.
//
//   %a = model.weight @a : tensor<8x64xf32>
//   %y = model.linear %x, %a            // x is bf16: the kernel rounds a
//   ...
//   %p, %m, %v = train.adamw ...
//
// becomes
//
//   %a = model.weight @a {rounded} : tensor<8x64xbf16>
//   %y = model.linear %x, %a
//   ...
//   %p, %m, %v = train.adamw ...
//   %r = train.round %p
//   train.store_flat rounded, %r

#include "compiler/Passes.h"
#include "dialects/Train/Train.h"

#include "runtime/Kernels/KernelTable.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

namespace qlora {
#define GEN_PASS_DEF_ROUNDADAPTERS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class RoundAdaptersPass
    : public qlora::impl::RoundAdaptersBase<RoundAdaptersPass> {
  void runOnOperation() override;
};
} // namespace

static Type elementOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getElementType();
}

/// Returns whether the kernel of `use` rounds this operand to bf16.
static bool isRoundedByKernel(OpOperand &use) {
  auto library = dyn_cast<LibraryOp>(use.getOwner());
  if (!library)
    return false;
  const KernelCall call = library.getKernelCall();
  bool isMarked = false, isBesideBF16 = false;
  for (auto [operand, value] :
       llvm::zip_equal(call.op->operands, call.operands)) {
    if (!operand.mayRound)
      continue;
    isMarked |= value == use.get();
    isBesideBF16 |= elementOf(value).isBF16();
  }
  return isMarked && isBesideBF16;
}

/// Replaces `weight` by its rounded copy in uses that round it.
static bool roundUses(WeightOp weight) {
  SmallVector<OpOperand *> uses;
  for (OpOperand &use : weight->getUses())
    if (isRoundedByKernel(use))
      uses.push_back(&use);
  if (uses.empty())
    return false;
  OpBuilder builder(weight);
  auto type = cast<RankedTensorType>(weight.getResult().getType());
  auto rounded = cast<WeightOp>(builder.clone(*weight));
  rounded.setRounded(true);
  rounded.getResult().setType(type.clone(builder.getBF16Type()));
  for (OpOperand *use : uses)
    use->set(rounded);
  if (weight->use_empty())
    weight.erase();
  return true;
}

static void storeRounded(OpBuilder &builder, Location loc, Value value,
                         FlatSymbolRefAttr parameter, int64_t row) {
  auto type = cast<RankedTensorType>(value.getType());
  Value rounded = train::RoundOp::create(
      builder, loc, type.clone(builder.getBF16Type()), value);
  StoreFlatOp::create(builder, loc, FlatKind::Rounded, parameter, rounded, row);
}

/// Stores the rounded copy after each update; for sharded updates, after the
/// gather.
static void storeRounded(StepOp step) {
  for (Operation &op : llvm::make_early_inc_range(step.getBody().front())) {
    OpBuilder builder(&op);
    if (auto store = dyn_cast<StoreFlatOp>(op);
        store && store.getFlat() == FlatKind::Trainable &&
        store.getPieces() == 1)
      storeRounded(builder, op.getLoc(), store.getValue(),
                   store.getParameterAttr(), store.getRow());
    auto gather = dyn_cast<GatherFlatOp>(op);
    if (!gather || gather.getFlat() != FlatKind::Trainable)
      continue;
    builder.setInsertionPointAfter(gather);
    storeRounded(builder, op.getLoc(), gather.getResult(), {}, gather.getRow());
  }
}

void RoundAdaptersPass::runOnOperation() {
  bool isAnyRounded = false;
  SymbolTable symbols(getOperation());
  SmallVector<StepOp> steps(getOperation().getOps<StepOp>());
  for (StepOp step : steps)
    for (auto weight :
         llvm::make_early_inc_range(step.getBody().getOps<WeightOp>()))
      if (symbols.lookup<model::ParameterOp>(weight.getParameter())
              .getTrainable())
        isAnyRounded |= roundUses(weight);
  if (!isAnyRounded)
    return;
  for (StepOp step : steps)
    storeRounded(step);
}
