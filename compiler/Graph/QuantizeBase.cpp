// SPDX-License-Identifier: MIT

// quantize-base: the weights of frozen linears get a 4-bit type.
//
//   model.parameter @w : tensor<64x64xbf16> {file = "model.safetensors"}
//
// becomes
//
//   model.parameter @w : tensor<64x64x!model.nf4<64, true>>
//       {file = ..., file_type = bf16, quantized = !model.nf4<64, true>}

#include "compiler/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_QUANTIZEBASE
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class QuantizeBasePass
    : public qlora::impl::QuantizeBaseBase<QuantizeBasePass> {
public:
  using QuantizeBaseBase::QuantizeBaseBase;

private:
  void runOnOperation() override;
};
} // namespace

/// A linear of a module multiplies with the weight.
static bool isWeightOfLinear(OpOperand &use) {
  auto linear = dyn_cast<LinearOp>(use.getOwner());
  return linear && linear.getModule() &&
         &use == &linear.getWeightMutable();
}

/// True where all readers are linears of modules; a remark where only some
/// are.
static bool canQuantize(ArrayRef<WeightOp> weights) {
  unsigned linears = 0;
  Operation *other = nullptr;
  for (WeightOp weight : weights)
    for (OpOperand &use : weight.getResult().getUses()) {
      if (isWeightOfLinear(use))
        ++linears;
      else
        other = use.getOwner();
    }
  if (linears && other) {
    WeightOp weight = weights.front();
    InFlightDiagnostic remark = weight.emitRemark("'")
                                << weight.getParameter()
                                << "' is not quantised: it is not only the "
                                   "weight of linears";
    remark.attachNote(other->getLoc()) << "another reader";
  }
  return linears && !other;
}

void QuantizeBasePass::runOnOperation() {
  ModuleOp module = getOperation();
  if (block < 64 || block > 4096 || (block & (block - 1))) {
    module.emitError("expects a power of two from 64 to 4096 as block, but "
                     "got ")
        << int64_t(block);
    return signalPassFailure();
  }
  DenseMap<Attribute, SmallVector<WeightOp>> uses;
  module.walk([&](WeightOp weight) {
    uses[weight.getParameterAttr()].push_back(weight);
  });
  auto nf4 = NF4Type::get(&getContext(), block, doubleQuant);
  for (auto parameter : module.getOps<ParameterOp>()) {
    RankedTensorType type = parameter.getTensorType();
    ArrayRef<WeightOp> weights = uses[FlatSymbolRefAttr::get(parameter)];
    if (parameter.getTrainable() || parameter.getInit() ||
        isa<NF4Type>(type.getElementType()) || !canQuantize(weights))
      continue;
    parameter.setFileTypeAttr(TypeAttr::get(type.getElementType()));
    parameter.setQuantizedAttr(TypeAttr::get(nf4));
    auto quantized = type.clone(nf4);
    parameter.setType(quantized);
    for (WeightOp weight : weights)
      weight.getResult().setType(quantized);
  }
}
