// SPDX-License-Identifier: MIT

// Creates a model.weight for each range of a weight, and slices.

#include "compiler/Partition/WeightShards.h"

#include "runtime/Weights/Slices.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

WeightOp qlora::usePart(OpBuilder &b, WeightOp weight, Ranks group,
                        int64_t ranks, unsigned dimension, int64_t first,
                        int64_t length) {
  const RankedTensorType type = tensorOf(weight);
  auto part = PartAttr::get(b.getContext(), ranks, dimension, first, length,
                            type.getDimSize(dimension), group);
  auto used = cast<WeightOp>(b.clone(*weight));
  used.setPartAttr(part);
  used.getResult().setType(part.of(type));
  return used;
}

static SlicedFormat formatOf(RankedTensorType type) {
  Type element = type.getElementType();
  if (auto stored = dyn_cast<QuantizedType>(element))
    return {stored.getFormat(), stored.getBlock(), stored.getDoubleQuant()};
  return {*elementDtype(element)};
}

static SlicedDimension dimensionOf(RankedTensorType type,
                                   const ShardedWeight &how, int64_t ranks) {
  return {type.getShape(), how.dimension, how.segments, ranks};
}

/// Returns the type of a rank's shard of a tensor, quantized or not.
static RankedTensorType sliceOf(RankedTensorType whole,
                                const ShardedWeight &how, int64_t ranks) {
  Type element = whole.getElementType();
  const SlicedFormat format = formatOf(whole);
  if (isa<QuantizedType>(element))
    element = QuantizedType::get(
        whole.getContext(), format.dtype,
        blockOfSlice(format, dimensionOf(whole, how, ranks)),
        doubleQuantOfSlice(format) == 1);
  const int64_t length = whole.getDimSize(how.dimension) / ranks;
  return withLength(whole, how.dimension, length).clone(element);
}

void qlora::sliceParameter(ParameterOp parameter, const ShardedWeight &how,
                           int64_t ranks) {
  RankedTensorType type = parameter.getTensorType(), stored = type;
  if (std::optional<Type> quantized = parameter.getQuantized()) {
    stored = type.clone(*quantized);
    parameter.setQuantizedAttr(
        TypeAttr::get(sliceOf(stored, how, ranks).getElementType()));
  }
  parameter.setType(sliceOf(type, how, ranks));
  parameter.setSliceAttr(SliceAttr::get(
      parameter.getContext(), ranks, how.dimension, how.segments,
      /*coded_scales=*/doubleQuantOfSlice(formatOf(stored)) == 2));
}

bool qlora::canSliceParameter(ParameterOp parameter, const ShardedWeight &how,
                              int64_t ranks) {
  RankedTensorType type = parameter.getTensorType();
  return canSlice(formatOf(type), dimensionOf(type, how, ranks));
}

SlicedBytes qlora::sliceWeights(ModuleOp module, const ShardedWeights &weights,
                                int64_t ranks) {
  SymbolTable symbols(module);
  SlicedBytes bytes;
  for (const auto &[name, how] : weights) {
    auto parameter = symbols.lookup<ParameterOp>(name);
    if (parameter.getTrainable())
      continue;
    bytes.whole += tensorBytes(parameter.getTensorType());
    sliceParameter(parameter, how, ranks);
    bytes.sliced += tensorBytes(parameter.getTensorType());
  }
  module.walk([&](WeightOp weight) {
    auto parameter = symbols.lookup<ParameterOp>(weight.getParameter());
    if (parameter.getSlice() && weights.contains(parameter.getSymNameAttr()))
      weight.getResult().setType(parameter.getTensorType());
  });
  return bytes;
}
