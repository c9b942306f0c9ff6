// SPDX-License-Identifier: MIT

// Kernel calls of library ops: the op of Kernels.def, and how operands and
// attributes become its operands and constants.

#include "dialects/Model/Model.h"

#include "runtime/Kernels/KernelTable.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

CallConstant::CallConstant(StringRef name, double number)
    : name(name), bits(doubleBits(number)), isDouble(true) {}

/// Returns the value of a constant that follows from an operand's type.
static std::optional<int64_t> derivedConstant(const KernelCall &call,
                                              unsigned constant) {
  StringRef name = call.op->constants[constant];
  for (auto [operand, value] : llvm::zip(call.op->operands, call.operands))
    if (value && operand.stride == constant)
      return columnsOf(value);
  if (name != "block" && name != "double_quant")
    return std::nullopt;
  Value w = call.operands[call.op->operandIndex("w")];
  auto stored = dyn_cast<QuantizedType>(tensorOf(w).getElementType());
  if (!stored)
    return 0;
  return name == "block" ? stored.getBlock() : stored.getDoubleQuant();
}

KernelCall::KernelCall(StringRef name, ArrayRef<CallOperand> values,
                       ArrayRef<CallConstant> numbers)
    : op(findKernelOp(name)) {
  const auto need = [&](bool isRight, StringRef what) {
    if (!isRight)
      llvm::report_fatal_error("call of kernel '" + Twine(name) +
                               "' has a wrong or no " + what);
  };
  size_t known = 0;
  const auto find = [&](auto given, StringRef key) {
    const auto *found =
        llvm::find_if(given, [&](auto &one) { return one.name == key; });
    known += found != given.end();
    return found == given.end() ? nullptr : found;
  };
  need(op, "name");
  for (const KernelOperand &operand : op->operands) {
    const CallOperand *given = find(values, operand.name);
    operands.push_back(given ? given->value : Value());
    need(operands.back() || operand.isOptional || operand.name == "workspace",
         operand.name);
  }
  for (auto [i, constant] : llvm::enumerate(op->constants)) {
    const CallConstant *given = find(numbers, constant);
    std::optional<int64_t> bits =
        given ? given->bits : derivedConstant(*this, i);
    if (!bits && i >= op->neededConstants)
      bits = 0;
    const bool isDouble = op->kinds[i] == ConstantKind::kDouble;
    need(bits && (!given || given->isDouble == isDouble), constant);
    constants.push_back(*bits);
  }
  while (constants.size() > op->neededConstants && constants.back() == 0)
    constants.pop_back();
  need(known == values.size() + numbers.size(), "name of an argument");
}

std::optional<unsigned> KernelCall::indexOf(Value value) const {
  const auto *found = llvm::find(operands, value);
  if (found == operands.end())
    return std::nullopt;
  return found - operands.begin();
}

bool KernelCall::mayHaveStride(unsigned operand) const {
  const std::optional<unsigned> stride = op->operands[operand].stride;
  return stride && operands[operand] &&
         constants[*stride] == columnsOf(operands[operand]);
}

int64_t EmbeddingOp::getVocabulary() {
  if (getWords())
    return getWords();
  const bool isInOut = getLayout() == WeightLayout::InOut;
  return tensorOf(getTable()).getDimSize(isInOut ? 0 : 1);
}

KernelCall EmbeddingOp::getKernelCall() {
  RankedTensorType out = tensorOf(getResult());
  return {"embedding",
          {{"ids", getIds()}, {"w", getTable()}, {"out", getResult()}},
          {{"rows", matrixRows(out)}, {"columns", matrixColumns(out)},
           {"vocab", getVocabulary()},
           {"turned", getLayout() == WeightLayout::OutIn},
           {"piece", getWords() ? tensorOf(getTable()).getDimSize(0) : 0}}};
}

KernelCall ColumnSumOp::getKernelCall() {
  // The summed rows may be narrower than x's (a norm over heads). Then x is
  // contiguous, and the stride is the width.
  int64_t width = columnsOf(getResult());
  return {"column_sum",
          {{"x", getX()}, {"out", getResult()}},
          {{"rows", tensorOf(getX()).getNumElements() / width},
           {"columns", width}, {"ldx", width}}};
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
  Value x = product.getXMutable().get(), w = product.getWeightMutable().get();
  Value y = product->getResult(0);
  RankedTensorType type = product.getWeightType();
  const int64_t m = matrixRows(tensorOf(x)), n = product.getOutWidth();
  const bool isTransposed = product.getLayout() == WeightLayout::OutIn;
  const CallConstant alpha = {"alpha", product.getScale()};
  const CallConstant beta = {"beta", product.getInit() ? 1.0 : 0.0};
  if (std::optional<double> threshold = product.getInt8Threshold())
    return {"int8_matmul",
            {{"a", x}, {"w", w}, {"c", y}},
            {{"m", m}, {"rows", n}, {"columns", product.getInWidth()},
             {"threshold", *threshold}, alpha, beta}};
  if (!product.getDecodedType())
    return {"matmul",
            {{"a", x}, {"b", w}, {"c", y}},
            {{"m", m}, {"n", n}, {"k", product.getInWidth()},
             {"transpose_a", false}, {"transpose_b", isTransposed}, alpha,
             beta}};
  return {"panel_matmul",
          {{"a", x}, {"w", w}, {"c", y}},
          {{"m", m}, {"rows", type.getDimSize(0)},
           {"columns", type.getDimSize(1)}, {"transpose_w", isTransposed},
           {"panel_columns", panelColumns(n)}, alpha, beta}};
}

KernelCall LinearOp::getKernelCall() { return matmulCall(*this); }

KernelCall AdaptedNormOp::getKernelCall() {
  RankedTensorType w = tensorOf(getWeight());
  return {"adapted_norm",
          {{"w", getWeight()}, {"a", getA()}, {"b", getB()},
           {"out", getResult()}},
          {{"rows", w.getDimSize(0)}, {"columns", w.getDimSize(1)},
           {"rank", tensorOf(getA()).getDimSize(0)},
           {"turned", getLayout() == WeightLayout::InOut},
           {"scale", getScale()}}};
}

/// The norm is f32: DoRA divides its f32 magnitudes by it and initializes them
/// with it.
bool AdaptedNormOp::isFullPrecisionResult(unsigned) { return true; }

KernelCall AttentionOp::getKernelCall() {
  RankedTensorType q = tensorOf(getQ());
  return {"attention",
          {{"q", getQ()}, {"k", getK()}, {"v", getV()},
           {"segments", getSegments()}, {"out", getResult()}, {"lse", getLse()},
           {"sinks", getSinks()}},
          {{"batch", q.getDimSize(0)}, {"length", q.getDimSize(1)},
           {"heads", getHeads()}, {"kv_heads", getKvHeads()},
           {"dim", getHeadDim()}, {"window", getWindow()},
           {"scale", getScale()}, {"cap", getCap()},
           {"slots", kAttentionSlots}}};
}

/// The log-sum-exp is f32: the backward exponentiates differences with it.
bool AttentionOp::isFullPrecisionResult(unsigned index) { return index == 1; }

KernelCall HeadLossOp::getKernelCall() {
  RankedTensorType hidden = tensorOf(getHidden());
  const bool replaces = !getReplaced().empty();
  const Value columns = replaces ? getReplaced().front() : Value();
  const Value words = replaces ? getReplaced().back() : Value();
  return {"head_loss",
          {{"hidden", getHidden()}, {"w", getWeight()},
           {"targets", getTargets()}, {"loss", getLoss()},
           {"count", getCount()}, {"correct", getCorrect()},
           {"columns", columns}, {"words", words}},
          {{"rows", matrixRows(hidden)}, {"hidden_size", matrixColumns(hidden)},
           {"vocab", tensorOf(getWeight()).getDimSize(0)}, {"cap", getCap()},
           {"chunk_rows", kHeadChunkRows}, {"lines", columnsOf(getLoss())},
           {"replaced", words ? columnsOf(words) : 0},
           {"smoothing", getLabelSmoothing()},
           {"own_probability", getOwnProbability()}}};
}
