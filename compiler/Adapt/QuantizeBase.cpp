// SPDX-License-Identifier: MIT

// quantize-base: gives weights of frozen linears a quantized type.
//
//   model.parameter @w : tensor<64x64xbf16> {file = "model.safetensors"}
//
// becomes
//
//   model.parameter @w : tensor<64x64x!model.quantized<nf4, 64, true>>
//       {file = ..., file_type = bf16, quantized = !model.quantized<nf4, 64,
//       true>}
//
// A weight [in, out] becomes one of [out, in], with `transposed`.

#include "compiler/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include "runtime/Kernels/Math/Stored.h"

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
  QuantizedType elementOf(const qlora::StoredFormat &format,
                          RankedTensorType type);
  void runOnOperation() override;
};
} // namespace

/// Returns the matmul whose weight is `use` if it belongs to a module and can
/// decode a quantized weight; else null.
static WeightedMatmul quantizableProduct(OpOperand &use, bool experts) {
  auto product = dyn_cast<WeightedMatmul>(use.getOwner());
  bool isWeight = product && product.getModule() &&
                  product.takesStoredWeight() &&
                  (experts || !product.getGroupOffsets()) &&
                  &use == &product.getWeightMutable();
  return isWeight ? product : WeightedMatmul();
}

/// Returns the matmuls that read the weights, if all readers are matmuls that
/// can decode a quantized weight, with one layout. Otherwise returns none, and
/// emits a remark if some readers are such matmuls.
static SmallVector<WeightedMatmul>
productsToQuantize(ArrayRef<WeightOp> weights, bool experts) {
  SmallVector<WeightedMatmul> products;
  Operation *other = nullptr;
  for (WeightOp weight : weights)
    for (OpOperand &use : weight.getResult().getUses()) {
      WeightedMatmul product = quantizableProduct(use, experts);
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
                                << "' is not quantized, because not only "
                                   "linears use it";
    remark.attachNote(other->getLoc()) << "another use";
  }
  return other ? SmallVector<WeightedMatmul>() : products;
}

/// Transposes a Conv1D weight. bitsandbytes quantizes it as the Linear that
/// replaces it, [out, in], so blocks are along `in`. The file has [in, out].
/// Experts, which are not separate modules, are quantized as they are.
static void turn(ParameterOp parameter, ArrayRef<WeightedMatmul> products) {
  RankedTensorType type = parameter.getTensorType();
  parameter.setType(type.clone({type.getDimSize(1), type.getDimSize(0)}));
  parameter.setTransposed(true);
  for (WeightedMatmul product : products)
    product.setLayout(WeightLayout::OutIn);
}

/// Returns the quantized element type. A format with row blocks has one scale
/// per row; a format with a single block length has that length.
QuantizedType QuantizeBasePass::elementOf(const qlora::StoredFormat &format,
                                          RankedTensorType type) {
  const int64_t ofFormat =
      format.leastBlock == format.mostBlock ? format.leastBlock : block;
  bool isDouble =
      format.codedScales == qlora::CodedScales::kAlways ||
      (format.codedScales == qlora::CodedScales::kByChoice && doubleQuant);
  return QuantizedType::get(
      &getContext(), format.dtype,
      format.takesRows ? type.getShape().back() : ofFormat, isDouble);
}

void QuantizeBasePass::runOnOperation() {
  ModuleOp module = getOperation();
  const qlora::StoredFormat *stored =
      qlora::storedFormat(std::string_view(format));
  if (!stored) {
    module.emitError("unknown format ") << format;
    return signalPassFailure();
  }
  if (!stored->takesRows && stored->leastBlock < stored->mostBlock &&
      !stored->takesBlock(block)) {
    module.emitError("expects a power of two from ")
        << stored->leastBlock << " to " << stored->mostBlock
        << " as block, but got " << int64_t(block);
    return signalPassFailure();
  }
  DenseMap<Attribute, SmallVector<WeightOp>> uses;
  module.walk([&](WeightOp weight) {
    uses[weight.getParameterAttr()].push_back(weight);
  });
  for (auto parameter : module.getOps<ParameterOp>()) {
    RankedTensorType type = parameter.getTensorType();
    ArrayRef<WeightOp> weights = uses[FlatSymbolRefAttr::get(parameter)];
    if (parameter.getTrainable() || parameter.getInit() ||
        isa<QuantizedType>(type.getElementType()))
      continue;
    SmallVector<WeightedMatmul> products = productsToQuantize(weights, experts);
    if (products.empty())
      continue;
    WeightedMatmul product = products.front();
    if (product.getLayout() == WeightLayout::InOut &&
        !product.getGroupOffsets())
      turn(parameter, products);
    parameter.setFileTypeAttr(TypeAttr::get(type.getElementType()));
    auto element = elementOf(*stored, parameter.getTensorType());
    // Power-of-two scales require blocks within one row.
    if (const int64_t columns = parameter.getTensorType().getShape().back();
        stored->codedScales == qlora::CodedScales::kAlways &&
        columns % element.getBlock() != 0) {
      parameter.emitError("'") << parameter.getSymName() << "' has " << columns
                               << " inputs, but " << stored->title
                               << " needs a multiple of " << element.getBlock();
      return signalPassFailure();
    }
    parameter.setQuantizedAttr(TypeAttr::get(element));
    auto quantized = parameter.getTensorType().clone(element);
    parameter.setType(quantized);
    for (WeightOp weight : weights)
      weight.getResult().setType(quantized);
  }
}
