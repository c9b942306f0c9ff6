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

/// True where every reader multiplies with it: a linear of a module.
static bool onlyLinearsRead(ArrayRef<WeightOp> weights) {
  for (WeightOp weight : weights)
    for (OpOperand &use : weight.getResult().getUses()) {
      auto linear = dyn_cast<LinearOp>(use.getOwner());
      if (!linear || !linear.getModule() ||
          use.get() != linear.getWeight())
        return false;
    }
  return !weights.empty();
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
        isa<NF4Type>(type.getElementType()) || !onlyLinearsRead(weights))
      continue;
    parameter.setFileTypeAttr(TypeAttr::get(type.getElementType()));
    parameter.setQuantizedAttr(TypeAttr::get(nf4));
    auto quantized = type.clone(nf4);
    parameter.setType(quantized);
    for (WeightOp weight : weights)
      weight.getResult().setType(quantized);
  }
}
