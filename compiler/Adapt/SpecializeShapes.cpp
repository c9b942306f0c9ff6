// SPDX-License-Identifier: MIT

// specialize-shapes: makes one copy of the forward function per micro-batch
// shape, with fixed batch, length and compute type (example: Passes.td).

#include "compiler/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include <set>

using namespace mlir;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_SPECIALIZESHAPES
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

/// The shape of a micro-batch; `step` names the step of a generation.
struct Variant {
  int64_t batch, length;
  StringRef step = {};
};

class SpecializeShapesPass
    : public qlora::impl::SpecializeShapesBase<SpecializeShapesPass> {
public:
  using SpecializeShapesBase::SpecializeShapesBase;

private:
  void runOnOperation() override;
  LogicalResult checkOptions();
  LogicalResult checkLengths(ArrayRef<int64_t> list);
  SmallVector<Variant> variants() const;
  void specialize(func::FuncOp function, Variant variant);
  Type specialized(Type type, Variant variant, bool keepF32) const;

  Type compute;
};

} // namespace

LogicalResult SpecializeShapesPass::checkOptions() {
  if (computeType != "float32" && computeType != "bfloat16")
    return getOperation().emitError("expects float32 or bfloat16 as compute "
                                    "type, but got '")
           << computeType << "'";
  if (batch < 1)
    return getOperation().emitError("expects a batch of at least 1, but got ")
           << int64_t(batch);
  if (lengths.empty() && generation.empty())
    return getOperation().emitError("expects at least one length, or a "
                                    "generation");
  if (!generation.empty() &&
      (generation.size() != 2 || generation[0] < 1 || generation[1] < 1))
    return getOperation().emitError("expects rows and tokens of at least 1 as "
                                    "generation");
  return success(succeeded(checkLengths(lengths)) &&
                 succeeded(checkLengths(buckets)));
}

LogicalResult SpecializeShapesPass::checkLengths(ArrayRef<int64_t> list) {
  std::set<int64_t> seen;
  for (int64_t length : list) {
    if (length < 2)
      return getOperation().emitError("expects a length of at least 2, since "
                                      "a token predicts the next, but got ")
             << length;
    if (!seen.insert(length).second)
      return getOperation().emitError("expects each length once, but got ")
             << length << " twice";
  }
  return success();
}

SmallVector<Variant> SpecializeShapesPass::variants() const {
  SmallVector<Variant> list;
  for (int64_t length : lengths)
    list.push_back({batch, length});
  for (int64_t bucket : buckets)
    if (batch != 1 || !llvm::is_contained(lengths, bucket))
      list.push_back({1, bucket});
  if (!generation.empty()) {
    list.push_back({1, generation[1], "prefill"});
    list.push_back({generation[0], 1, "decode"});
  }
  return list;
}

/// Fixes the dynamic dimensions of `type`: batch is the first of a tensor;
/// length is second in activations and last in per-head values of attention.
/// Values with one number per row stay f32.
Type SpecializeShapesPass::specialized(Type type, Variant variant,
                                       bool keepF32) const {
  auto tensor = dyn_cast<RankedTensorType>(type);
  const int64_t open = tensor ? tensor.getNumDynamicDims() : 0;
  if (open < 1 || open > 2 || !tensor.isDynamicDim(0))
    return type;
  SmallVector<int64_t> shape(tensor.getShape());
  *llvm::find(shape, ShapedType::kDynamic) = variant.batch;
  if (open == 2)
    *llvm::find(shape, ShapedType::kDynamic) = variant.length;
  Type element = tensor.getElementType();
  if (open == 2 && element.isF32() && !keepF32)
    element = compute;
  return RankedTensorType::get(shape, element);
}

void SpecializeShapesPass::specialize(func::FuncOp function, Variant variant) {
  OpBuilder builder(function);
  auto copy = cast<func::FuncOp>(builder.clone(*function));
  const std::string shape =
      (Twine(variant.batch) + "x" + Twine(variant.length)).str();
  if (variant.step.empty()) {
    copy.setName((function.getName() + "_" + shape).str());
  } else {
    copy.setName((function.getName() + "_" + variant.step + "_" + shape).str());
    copy->setAttr(kStepAttr, builder.getStringAttr(variant.step));
  }
  copy->setAttr("model.batch", builder.getI64IntegerAttr(variant.batch));
  copy->setAttr("model.length", builder.getI64IntegerAttr(variant.length));
  for (BlockArgument argument : copy.getArguments())
    argument.setType(specialized(argument.getType(), variant, false));
  // Row regions have static rows, so only the function's own ops change.
  for (Operation &op : copy.front()) {
    auto library = dyn_cast<LibraryOp>(op);
    auto rows = dyn_cast<RowOp>(op);
    for (OpResult result : op.getResults()) {
      const unsigned number = result.getResultNumber();
      bool keep = (library && library.isFullPrecisionResult(number)) ||
                  (rows && rows.isScalarResult(number));
      result.setType(specialized(result.getType(), variant, keep));
    }
  }
  copy.setFunctionType(FunctionType::get(
      &getContext(), copy.front().getArgumentTypes(),
      copy.front().getTerminator()->getOperandTypes()));
}

void SpecializeShapesPass::runOnOperation() {
  if (failed(checkOptions()))
    return signalPassFailure();
  compute = computeType == "bfloat16" ? Type(BFloat16Type::get(&getContext()))
                                      : Type(Float32Type::get(&getContext()));
  SmallVector<func::FuncOp> functions(getOperation().getOps<func::FuncOp>());
  for (func::FuncOp function : functions) {
    if (function.isDeclaration()) {
      function.emitOpError("has no body; expects the forward function");
      return signalPassFailure();
    }
    for (Variant variant : variants())
      specialize(function, variant);
    function.erase();
  }
}
