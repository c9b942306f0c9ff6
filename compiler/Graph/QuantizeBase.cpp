// SPDX-License-Identifier: MIT

// quantize-base: the weights of frozen linears get a 4-bit type.
//
//   model.parameter @w : tensor<64x64xbf16> {file = "model.safetensors"}
//
// becomes
//
//   model.parameter @w : tensor<64x64x!model.nf4<64, true>>
//       {file = ..., file_type = bf16, quantized = !model.nf4<64, true>}
//
// A weight [in, out] becomes one of [out, in], with `transposed`.

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

/// A product that stands for a module multiplies with the weight, and can
/// decode it.
static WeightedProduct quantizableProduct(OpOperand &use, bool experts) {
  auto product = dyn_cast<WeightedProduct>(use.getOwner());
  bool isWeight = product && product.getModule() &&
                  product.takesStoredWeight() &&
                  (experts || !product.getGroupOffsets()) &&
                  &use == &product.getWeightMutable();
  return isWeight ? product : WeightedProduct();
}

/// The readers, where all are products of modules and see the weight the same
/// way; a remark where only some are, and none then.
static SmallVector<WeightedProduct>
productsToQuantize(ArrayRef<WeightOp> weights, bool experts) {
  SmallVector<WeightedProduct> products;
  Operation *other = nullptr;
  for (WeightOp weight : weights)
    for (OpOperand &use : weight.getResult().getUses()) {
      WeightedProduct product = quantizableProduct(use, experts);
      if (product && (products.empty() ||
                      products.front().getLayout() == product.getLayout()))
        products.push_back(product);
      else
        other = use.getOwner();
    }
  if (!products.empty() && other) {
    WeightOp weight = weights.front();
    InFlightDiagnostic remark = weight.emitRemark("'")
                                << weight.getParameter()
                                << "' is not quantised: it is not only the "
                                   "weight of linears";
    remark.attachNote(other->getLoc()) << "another reader";
  }
  return other ? SmallVector<WeightedProduct>() : products;
}

/// bitsandbytes quantises a Conv1D as the Linear that it puts in its place,
/// [out, in]: blocks go along x. The file keeps its [in, out]. Experts, which
/// are no modules of their own, it takes as they are.
static void turn(ParameterOp parameter, ArrayRef<WeightedProduct> products) {
  RankedTensorType type = parameter.getTensorType();
  parameter.setType(type.clone({type.getDimSize(1), type.getDimSize(0)}));
  parameter.setTransposed(true);
  for (WeightedProduct product : products)
    product.setLayout(WeightLayout::OutIn);
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
        isa<NF4Type>(type.getElementType()))
      continue;
    SmallVector<WeightedProduct> products =
        productsToQuantize(weights, experts);
    if (products.empty())
      continue;
    WeightedProduct product = products.front();
    if (product.getLayout() == WeightLayout::InOut &&
        !product.getGroupOffsets())
      turn(parameter, products);
    parameter.setFileTypeAttr(TypeAttr::get(type.getElementType()));
    parameter.setQuantizedAttr(TypeAttr::get(nf4));
    auto quantized = parameter.getTensorType().clone(nf4);
    parameter.setType(quantized);
    for (WeightOp weight : weights)
      weight.getResult().setType(quantized);
  }
}
