// SPDX-License-Identifier: MIT

// Kernel calls of library ops: the op of Kernels.def, and how operands and
// attributes become its operands and constants.

#include "dialects/Model/Model.h"

using namespace mlir;
using namespace qlora::model;

using A = KernelArgument;

int64_t EmbeddingOp::getVocabulary() {
  if (getWords())
    return getWords();
  const bool isInOut = getLayout() == WeightLayout::InOut;
  return tensorOf(getTable()).getDimSize(isInOut ? 0 : 1);
}

KernelCall EmbeddingOp::getKernelCall() {
  RankedTensorType out = tensorOf(getResult());
  return {"embedding",
          {{A::Operand, 0}, {A::Operand, 1}, {A::Result, 0}},
          {matrixRows(out), matrixColumns(out), getVocabulary(),
           matrixColumns(out), getLayout() == WeightLayout::OutIn,
           getWords() ? tensorOf(getTable()).getDimSize(0) : 0},
          {{3, 2}}};
}

KernelCall ColumnSumOp::getKernelCall() {
  RankedTensorType x = tensorOf(getX());
  int64_t width = columnsOf(getResult());
  // The summed rows may be narrower than x's (a norm over heads). Then x is
  // contiguous, and the stride is the width.
  SmallVector<std::pair<unsigned, unsigned>> strides;
  if (width == columnsOf(getX()))
    strides.push_back({2, 0});
  return {"column_sum",
          {{A::Operand, 0}, {A::Result, 0}, {A::Workspace}},
          {x.getNumElements() / width, width, width},
          strides};
}

int64_t qlora::model::panelColumns(int64_t columns) {
  constexpr int64_t kUnit = 16;
  for (int64_t panel : {128, 64}) {
    const bool isEven = columns % (2 * panel) == 0;
    if (columns >= (isEven ? 4 : 8) * panel)
      return panel;
  }
  const int64_t half = (columns + 1) / 2;
  return std::min(columns, (half + kUnit - 1) / kUnit * kUnit);
}

Type WeightedMatmul::getDecodedType() {
  Type stored = getWeightType().getElementType();
  Type numbers = tensorOf(getX()).getElementType();
  bool isTakenAsItIs = stored == numbers || stored.isF32();
  isTakenAsItIs |= getInt8Threshold().has_value();
  return takesStoredWeight() && !isTakenAsItIs ? numbers : Type();
}

WeightedMatmul WeightedMatmul::cloneWith(OpBuilder &builder, Value weight,
                                         Type product) {
  assert(!getInit() && "a sum is of one product");
  auto copy = cast<WeightedMatmul>(builder.clone(*getOperation()));
  copy.getWeightMutable().set(weight);
  copy.getProduct().setType(product);
  return copy;
}

KernelCall qlora::model::matmulCall(WeightedMatmul product) {
  RankedTensorType x = tensorOf(product.getX()), w = product.getWeightType();
  int64_t m = matrixRows(x), k = product.getInWidth(),
          n = product.getOutWidth();
  bool isTransposed = product.getLayout() == WeightLayout::OutIn;
  int64_t scale = doubleBits(product.getScale().convertToDouble()),
          beta = doubleBits(product.getInit() ? 1.0 : 0.0);
  SmallVector<A> arguments = {
      {A::Operand, product.getXMutable().getOperandNumber()},
      {A::Operand, product.getWeightMutable().getOperandNumber()},
      {A::Result, 0},
      {A::Workspace}};
  auto stored = dyn_cast<QuantizedType>(w.getElementType());
  if (std::optional<double> threshold = product.getInt8Threshold())
    return {"int8_matmul",
            arguments,
            {m, n, k, k, n, stored.getBlock(), stored.getDoubleQuant(),
             doubleBits(*threshold), scale, beta},
            {{3, 0}, {4, 2}}};
  if (!product.getDecodedType())
    return {"matmul",
            arguments,
            {m, n, k, k, w.getDimSize(1), n, 0, isTransposed, scale, beta},
            {{3, 0}, {5, 2}}};
  return {"panel_matmul",
          arguments,
          {m, w.getDimSize(0), w.getDimSize(1), k, n, isTransposed,
           stored ? stored.getBlock() : 0, stored && stored.getDoubleQuant(),
           panelColumns(n), scale, beta},
          {{3, 0}, {4, 2}}};
}

KernelCall LinearOp::getKernelCall() { return matmulCall(*this); }

KernelCall AdaptedNormOp::getKernelCall() {
  RankedTensorType w = tensorOf(getWeight());
  auto stored = dyn_cast<QuantizedType>(w.getElementType());
  return {"adapted_norm",
          {{A::Operand, 0}, {A::Operand, 1}, {A::Operand, 2}, {A::Result, 0}},
          {w.getDimSize(0), w.getDimSize(1), tensorOf(getA()).getDimSize(0),
           getLayout() == WeightLayout::InOut, stored ? stored.getBlock() : 0,
           stored && stored.getDoubleQuant(),
           doubleBits(getScale().convertToDouble())},
          {}};
}

/// The norm is f32: DoRA divides its f32 magnitudes by it and initializes them
/// with it.
bool AdaptedNormOp::isFullPrecisionResult(unsigned) { return true; }

KernelCall AttentionOp::getKernelCall() {
  RankedTensorType q = tensorOf(getQ());
  A sinks = getSinks() ? A{A::Operand, 4} : A{A::Absent};
  return {"attention",
          {{A::Operand, 0}, {A::Operand, 1}, {A::Operand, 2}, {A::Operand, 3},
           {A::Result, 0}, {A::Result, 1}, sinks, {A::Workspace}},
          {q.getDimSize(0), q.getDimSize(1), (int64_t)getHeads(),
           (int64_t)getKvHeads(), (int64_t)getHeadDim(), columnsOf(getQ()),
           columnsOf(getK()), columnsOf(getV()), columnsOf(getResult()),
           (int64_t)getWindow(), doubleBits(getScale().convertToDouble()),
           doubleBits(getCap().convertToDouble()), kAttentionSlots},
          {{5, 0}, {6, 1}, {7, 2}, {8, 4}}};
}

/// The log-sum-exp is f32: the backward exponentiates differences with it.
bool AttentionOp::isFullPrecisionResult(unsigned index) { return index == 1; }

KernelCall HeadLossOp::getKernelCall() {
  RankedTensorType hidden = tensorOf(getHidden());
  int64_t vocab = tensorOf(getWeight()).getDimSize(0);
  const bool replaces = !getReplaced().empty();
  const A columns = replaces ? A{A::Operand, 3} : A{A::Absent};
  const A words = replaces ? A{A::Operand, 4} : A{A::Absent};
  return {"head_loss",
          {{A::Operand, 0}, {A::Operand, 1}, {A::Operand, 2}, {A::Result, 0},
           {A::Result, 1}, {A::Result, 2}, columns, words, {A::Workspace}},
          {matrixRows(hidden), matrixColumns(hidden), vocab,
           matrixColumns(hidden), doubleBits(getCap().convertToDouble()),
           kHeadChunkRows, columnsOf(getLoss()),
           replaces ? columnsOf(getReplaced().back()) : 0},
          {{3, 0}}};
}
