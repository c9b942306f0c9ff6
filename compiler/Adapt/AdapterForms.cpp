// SPDX-License-Identifier: MIT

// Biases, magnitudes and factors of adapters.

#include "compiler/Adapt/AdapterForms.h"
#include "compiler/Adapt/AdapterWeight.h"

using namespace mlir;
using namespace qlora::model;

void qlora::addAdapterBias(ModuleOp root, LinearOp branch, StringRef module) {
  auto sum = cast<model::AddOp>(*branch->user_begin());
  OpBuilder builder(root.getContext());
  builder.setInsertionPointAfter(sum);
  Location loc = branch.getLoc();
  auto bias = adapterWeight(root, builder, loc, module + ".lora_B.bias",
                            {tensorOf(sum).getShape().back()}, "zero");
  auto scaled = ScaleOp::create(builder, loc, bias, branch.getScale(),
                                /*rounded=*/false);
  auto biased = AddBiasOp::create(builder, loc, sum.getType(), sum, scaled);
  sum.getResult().replaceAllUsesExcept(biased, biased);
  copyStage(branch, scaled);
  copyStage(branch, biased);
}

void qlora::addMagnitude(ModuleOp root, WeightedMatmul product, Value x,
                         WeightOp weightA, LinearOp branch) {
  StringRef module = *product.getModule();
  Location loc = product.getLoc();
  auto sum = cast<model::AddOp>(*branch->user_begin());
  OpBuilder builder(root.getContext());
  builder.setInsertionPointAfter(sum);
  auto type = cast<RankedTensorType>(sum.getType());
  const int64_t out = product.getOutWidth();
  auto magnitude = adapterWeight(
      root, builder, loc, module + ".lora_magnitude_vector", {out}, "computed");
  auto norm = AdaptedNormOp::create(
      builder, loc, magnitude.getType(), product.getWeight(), weightA,
      branch.getWeight(), branch.getScale(), magnitude.getParameterAttr(),
      product.getLayout());
  SmallVector<Operation *> added = {norm};
  Value rest;
  if (x != product.getX()) {
    WeightedMatmul dropped =
        product.cloneWith(builder, product.getWeight(), type);
    dropped.getXMutable().set(x);
    // PEFT multiplies by the decoded weight here, without rounding x to 8 bits.
    dropped.roundInput(std::nullopt);
    auto minus = ScaleOp::create(builder, loc, dropped.getProduct(),
                                 llvm::APFloat(-1.0), /*rounded=*/false);
    auto kept = model::AddOp::create(builder, loc, type, sum.getA(), minus);
    sum->moveAfter(kept);
    sum.getAMutable().set(dropped.getProduct());
    builder.setInsertionPointAfter(sum);
    added.append({minus, kept});
    rest = kept;
  }
  auto scaled = MagnitudeOp::create(builder, loc, type, sum, magnitude, norm);
  added.push_back(scaled);
  Operation *last = scaled;
  if (rest)
    added.push_back(
        last = model::AddOp::create(builder, loc, type, rest, scaled));
  sum.getResult().replaceAllUsesExcept(last->getResult(0), scaled);
  for (Operation *op : added)
    copyStage(product, op);
}

LogicalResult qlora::recordLoraInitFactors(ModuleOp root,
                                           WeightedMatmul product, int64_t rank,
                                           double scale,
                                           NamedAttrList &factors) {
  StringRef module = *product.getModule();
  auto weight = product.getWeight().getDefiningOp<WeightOp>();
  auto parameter = root.lookupSymbol<model::ParameterOp>(weight.getParameter());
  if (parameter.getStoredQuantized() || parameter.getPartNames())
    return parameter.emitError("init_lora_weights: '")
           << parameter.getSymName()
           << "' is stored quantized or as several tensors, but pissa, olora "
              "and loftq need the original weight; use an unquantized model, "
              "or init_lora_weights: true";
  const int64_t values = std::min(product.getInWidth(), product.getOutWidth());
  if (rank > values)
    return parameter.emitError("init_lora_weights: '")
           << module << "' has " << values
           << " singular values, fewer than the rank " << rank
           << "; lower lora_r";
  Builder b(root.getContext());
  const bool isTransposed =
      parameter.getTransposed() || product.getLayout() == WeightLayout::InOut;
  factors.set("base_model.model." + module.str() + ".lora_A.weight",
              b.getDictionaryAttr(
                  {b.getNamedAttr("scale", b.getF64FloatAttr(scale)),
                   b.getNamedAttr("turned", b.getBoolAttr(isTransposed)),
                   b.getNamedAttr("weight", parameter.getSymNameAttr())}));
  return success();
}
