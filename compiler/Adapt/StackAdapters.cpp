// SPDX-License-Identifier: MIT

// stack-adapters: lets each token of a generation choose its adapter.
// GenerationPasses.td has an example.

#include "compiler/Passes.h"
#include "dialects/Model/Model.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_STACKADAPTERS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class StackAdaptersPass
    : public qlora::impl::StackAdaptersBase<StackAdaptersPass> {
public:
  using StackAdaptersBase::StackAdaptersBase;

private:
  void runOnOperation() override;
  LogicalResult rewrite(func::FuncOp function, SymbolTable &symbols);
  RankedTensorType stackedType(RankedTensorType type) const;
};
} // namespace

/// Returns [out, adapters, in] for a weight [out, in].
RankedTensorType StackAdaptersPass::stackedType(RankedTensorType type) const {
  return RankedTensorType::get(
      {type.getDimSize(0), int64_t(adapters), type.getDimSize(1)},
      type.getElementType());
}

/// Returns whether the op is a plain product with W [out, in].
static bool isStackable(LinearOp linear, Value weight) {
  return linear && linear.getWeight() == weight && !linear.getModule() &&
         linear.getLayout() == WeightLayout::OutIn &&
         !linear.getInt8Threshold();
}

/// Adds the input `adapters`, i32 [B, T] as `slots`.
static Value addInput(func::FuncOp function) {
  Builder b(function.getContext());
  Type type = RankedTensorType::get(
      {function->getAttrOfType<IntegerAttr>("model.batch").getInt(),
       function->getAttrOfType<IntegerAttr>("model.length").getInt()},
      b.getI32Type());
  auto attributes = b.getDictionaryAttr(
      b.getNamedAttr("model.input", b.getStringAttr("adapters")));
  (void)function.insertArgument(function.getNumArguments(), type, attributes,
                                function.getLoc());
  return function.getArguments().back();
}

LogicalResult StackAdaptersPass::rewrite(func::FuncOp function,
                                         SymbolTable &symbols) {
  Value chosen = addInput(function);
  for (auto weight : llvm::make_early_inc_range(function.getOps<WeightOp>())) {
    auto parameter = symbols.lookup<ParameterOp>(weight.getParameter());
    if (!parameter.getTrainable())
      continue;
    for (Operation *user : llvm::make_early_inc_range(weight->getUsers())) {
      auto linear = dyn_cast<LinearOp>(user);
      if (!parameter.getInit() || !isStackable(linear, weight))
        return parameter.emitError("--max-loras: '")
               << parameter.getSymName()
               << "' is not the A or B of a linear's plain LoRA, so rows "
                  "cannot choose it. Fix: compile for this adapter alone, "
                  "without --max-loras";
      if (linear.getScale().convertToDouble() != 1)
        return linear.emitOpError("expects an adapter of scale 1, but got ")
               << linear.getScale().convertToDouble();
      OpBuilder builder(linear);
      auto stacked = AdapterLinearOp::create(
          builder, linear.getLoc(), linear.getResult().getType(), linear.getX(),
          weight, chosen, linear.getInit());
      copyStage(linear, stacked);
      linear.getResult().replaceAllUsesWith(stacked);
      linear.erase();
    }
    weight.getResult().setType(
        stackedType(cast<RankedTensorType>(weight.getResult().getType())));
  }
  return success();
}

void StackAdaptersPass::runOnOperation() {
  if (adapters <= 0)
    return;
  SymbolTable symbols(getOperation());
  for (auto function : getOperation().getOps<func::FuncOp>()) {
    if (!function->hasAttr(kStepAttr)) {
      function.emitOpError("expects only functions of a generation");
      return signalPassFailure();
    }
    if (failed(rewrite(function, symbols)))
      return signalPassFailure();
  }
  for (auto parameter : getOperation().getOps<model::ParameterOp>()) {
    if (!parameter.getTrainable())
      continue;
    parameter.setType(stackedType(parameter.getTensorType()));
    parameter.setInit("zero");
  }
}
