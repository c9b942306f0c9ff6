// SPDX-License-Identifier: MIT

// Verifiers of the model ops, except parameters (ModelParameters.cpp). Labels
// such as (C1) are defined in ModelOps.td.

#include "dialects/Model/Model.h"

#include "runtime/Kernels/Math/Stored.h"

#include <cmath>

using namespace mlir;
using namespace qlora::model;

#define GET_OP_CLASSES
#include "dialects/Model/ModelOps.cpp.inc"

/// Returns whether two dimensions are equal or one of them is dynamic.
static bool agree(int64_t a, int64_t b) {
  return a == b || ShapedType::isDynamic(a) || ShapedType::isDynamic(b);
}

/// Returns whether `value` is i32 [B, T] with the first dimensions of `like`.
static bool isTokenMask(Value value, Value like) {
  RankedTensorType type = tensorOf(value), other = tensorOf(like);
  return type.getRank() == 2 && type.getElementType().isInteger(32) &&
         other.getRank() == 3 &&
         agree(type.getDimSize(0), other.getDimSize(0)) &&
         agree(type.getDimSize(1), other.getDimSize(1));
}

/// Returns whether all dimensions but the last agree: the tokens are the same.
static bool sameTokens(Value a, Value b) {
  ArrayRef<int64_t> x = tensorOf(a).getShape(), y = tensorOf(b).getShape();
  return x.size() == y.size() &&
         llvm::all_of(llvm::zip_equal(x.drop_back(), y.drop_back()),
                      [](auto pair) {
                        return agree(std::get<0>(pair), std::get<1>(pair));
                      });
}

//===----------------------------------------------------------------------===//
// Library ops
//===----------------------------------------------------------------------===//

LogicalResult EmbeddingOp::verify() {
  RankedTensorType ids = tensorOf(getIds());
  if (ids.getRank() < 2 || !ids.getElementType().isInteger(32) ||
      ids.getShape() != tensorOf(getResult()).getShape().drop_back())
    return emitOpError("(C1) expects ids of type [B, T] i32");
  RankedTensorType table = tensorOf(getTable());
  const bool isInOut = getLayout() == WeightLayout::InOut;
  if (table.getRank() != 2 ||
      columnsOf(getResult()) != table.getDimSize(isInOut ? 1 : 0))
    return emitOpError("(C2) expects a result as wide as the table, but got ")
           << columnsOf(getResult());
  if (isa<QuantizedType>(table.getElementType()))
    return emitOpError("(C3) expects a table that is not quantized");
  return success();
}

LogicalResult LinearOp::verify() {
  RankedTensorType weight = tensorOf(getWeight());
  auto product = cast<WeightedMatmul>(getOperation());
  StringRef layout = stringifyWeightLayout(getLayout());
  if (weight.getRank() != 2 || columnsOf(getX()) != product.getInWidth())
    return emitOpError("(C1) expects x as wide as the weight's in, but got ")
           << columnsOf(getX()) << " and " << weight << ", " << layout;
  if (columnsOf(getResult()) != product.getOutWidth())
    return emitOpError("(C2) expects a result as wide as the weight's out, "
                       "but got ")
           << columnsOf(getResult()) << " and " << weight << ", " << layout;
  if (!sameTokens(getX(), getResult()))
    return emitOpError("(C2) expects a result for the tokens of x, but got ")
           << getResult().getType() << " for " << getX().getType();
  if (getInit() && getInit().getType() != getResult().getType())
    return emitOpError("(C3) expects init of type ") << getResult().getType();
  if (std::optional<double> threshold = getInt8Threshold()) {
    auto stored = dyn_cast<QuantizedType>(weight.getElementType());
    if (!stored || !qlora::storedFormat(stored.getFormat())->isInteger() ||
        getLayout() != WeightLayout::OutIn)
      return emitOpError("(C4) expects an integer weight, out_in, with "
                         "int8_threshold, but got ")
             << weight << ", " << layout;
    if (!(*threshold >= 0) || std::isinf(*threshold))
      return emitOpError("(C4) expects an int8_threshold that is neither "
                         "negative nor infinite, but got ")
             << *threshold;
  }
  return success();
}

static bool isCap(const APFloat &cap) {
  return cap.isFinite() && !cap.isNegative();
}

LogicalResult AdaptedNormOp::verify() {
  RankedTensorType w = tensorOf(getWeight()), a = tensorOf(getA()),
                   b = tensorOf(getB()), norm = tensorOf(getResult());
  bool isTransposed = getLayout() == WeightLayout::InOut;
  int64_t out = w.getDimSize(isTransposed), in = w.getDimSize(!isTransposed);
  if (a.getRank() != 2 || b.getShape() != ArrayRef({out, a.getDimSize(0)}) ||
      a.getDimSize(1) != in || norm.getShape() != ArrayRef({out}))
    return emitOpError("(C1) expects A [rank, ")
           << in << "], B [" << out << ", rank] and " << out
           << " norms, but got " << a << ", " << b << " and " << norm;
  for (RankedTensorType type : {a, b, norm})
    if (!type.getElementType().isF32())
      return emitOpError("(C2) expects f32, but got ") << type;
  for (Value operand : getOperands())
    if (!isa_and_nonnull<WeightOp, GatherWeightOp>(operand.getDefiningOp()))
      return emitOpError("(C3) expects weights as operands");
  return success();
}

LogicalResult AttentionOp::verify() {
  int64_t heads = getHeads(), kvHeads = getKvHeads(), dim = getHeadDim();
  if (kvHeads <= 0 || heads <= 0 || dim <= 0 || heads % kvHeads)
    return emitOpError("(C1) expects heads to be a multiple of kv_heads, but "
                       "got ")
           << heads << " and " << kvHeads << ", of " << dim;
  if (columnsOf(getQ()) != heads * dim || columnsOf(getK()) != kvHeads * dim ||
      columnsOf(getV()) != kvHeads * dim ||
      columnsOf(getResult()) != heads * dim)
    return emitOpError("(C2) expects widths of ")
           << heads << " and " << kvHeads << " heads of " << dim;
  for (Value value : {getK(), getV(), getResult()})
    if (!sameTokens(value, getQ()))
      return emitOpError("(C2) expects the tokens of q, ")
             << getQ().getType() << ", but got " << value.getType();
  if (!isTokenMask(getSegments(), getQ()))
    return emitOpError("(C3) expects segments of type [B, T] i32");
  RankedTensorType lse = tensorOf(getLse()), q = tensorOf(getQ());
  if (!lse.getElementType().isF32() || lse.getRank() != 3 ||
      !agree(lse.getDimSize(0), q.getDimSize(0)) ||
      lse.getDimSize(1) != heads || !agree(lse.getDimSize(2), q.getDimSize(1)))
    return emitOpError("(C4) expects the log-sum-exp as f32 [B, heads, T], but "
                       "got ")
           << lse;
  if (static_cast<int64_t>(getWindow()) < 0)
    return emitOpError("(C5) expects a window of at least 0, but got ")
           << static_cast<int64_t>(getWindow());
  if (!isCap(getCap()))
    return emitOpError("(C5) expects a finite cap of at least 0");
  if (Value sinks = getSinks())
    if (sinks.getType() !=
        RankedTensorType::get({heads}, Float32Type::get(getContext())))
      return emitOpError("(C6) expects sinks of type f32 [")
             << heads << "], but got " << sinks.getType();
  return success();
}

LogicalResult HeadLossOp::verify() {
  RankedTensorType weight = tensorOf(getWeight());
  if (weight.getRank() != 2 || weight.getDimSize(1) != columnsOf(getHidden()))
    return emitOpError("(C1) expects a weight as wide as hidden, but got ")
           << weight << " and " << columnsOf(getHidden());
  if (!isTokenMask(getTargets(), getHidden()))
    return emitOpError("(C2) expects targets of type [B, T] i32");
  if (isa<QuantizedType>(weight.getElementType()))
    return emitOpError("(C3) expects a weight that is not quantized");
  auto one = RankedTensorType::get({1}, Float32Type::get(getContext()));
  auto lines = one.clone({tensorOf(getHidden()).getDimSize(0)});
  Type type = getLoss().getType();
  if ((type != one && type != lines) || getCount().getType() != type ||
      !isTokenMask(getCorrect(), getHidden()))
    return emitOpError("(C4) expects results of type ")
           << one << " or " << lines << " twice and [B, T] i32";
  if (!isCap(getCap()))
    return emitOpError("(C5) expects a finite cap of at least 0");
  const double smoothing = getLabelSmoothing().convertToDouble();
  if (!(smoothing >= 0 && smoothing <= 1))
    return emitOpError("(C7) expects a label_smoothing in [0, 1]");
  if (getReplaced().empty())
    return success();
  if (getReplaced().size() != 2 ||
      tensorOf(getReplaced()[0]).getShape().drop_back() !=
          tensorOf(getHidden()).getShape().drop_back() ||
      getReplaced()[1].getType() != one.clone({columnsOf(getReplaced()[0])}))
    return emitOpError("(C6) expects columns [B, T, k] and their token ids, "
                       "f32 [k], but got ")
           << getReplaced().getTypes();
  return success();
}

//===----------------------------------------------------------------------===//
// Row ops
//===----------------------------------------------------------------------===//

template <typename Op> static LogicalResult verifyNorm(Op op) {
  int64_t width = columnsOf(op.getWeight());
  if (tensorOf(op.getWeight()).getRank() != 1 || width < 1 ||
      columnsOf(op.getX()) % width)
    return op.emitOpError("(C1) expects a width that is a multiple of the "
                          "weight's ")
           << width << ", but got " << columnsOf(op.getX());
  if (op.getX().getType() != op.getResult().getType())
    return op.emitOpError("(C2) expects a result of type ")
           << op.getX().getType();
  return success();
}

LogicalResult RmsNormOp::verify() { return verifyNorm(*this); }

LogicalResult LayerNormOp::verify() {
  if (failed(verifyNorm(*this)))
    return failure();
  if (tensorOf(getBias()).getShape() != tensorOf(getWeight()).getShape())
    return emitOpError("(C3) expects a bias of ")
           << columnsOf(getWeight()) << " elements, but got "
           << columnsOf(getBias());
  return success();
}

LogicalResult GluOp::verify() {
  if (getLimit().isNegative() || !getLimit().isFinite())
    return emitOpError("(C1) expects a finite limit that is not negative");
  if (getKind() != Activation::Silu && !getSlope().isExactlyValue(1.0))
    return emitOpError("(C2) expects silu with a slope, but got ")
           << stringifyActivation(getKind());
  return success();
}

LogicalResult RopeTableOp::verify() {
  if (!isTokenMask(getPositions(), getCos()) ||
      (getLengths() && !isTokenMask(getLengths(), getCos())))
    return emitOpError("(C1) expects positions and lengths of type [B, T] i32");
  int64_t turned = getFrequencies().size();
  if (turned % 2 || turned > columnsOf(getCos()) ||
      getSin().getType() != getCos().getType())
    return emitOpError("(C2) expects cos and sin of one type, and an even "
                       "number of frequencies, at most their width, but got ")
           << turned;
  std::optional<ArrayRef<float>> beyond = getLongFrequencies();
  bool isDynamic = !getDynamicFactor().isZero();
  const bool hasScaling = beyond || isDynamic;
  if ((beyond && (isDynamic || beyond->size() != getFrequencies().size())) ||
      hasScaling != (getOriginalLength() > 0) ||
      hasScaling != static_cast<bool>(getLengths()))
    return emitOpError("(C3) expects lengths and an original length together "
                       "with a dynamic factor or as many long frequencies as "
                       "frequencies");
  return success();
}

LogicalResult RopeOp::verify() {
  int64_t dim = columnsOf(getCos());
  if (dim < 1 || dim % 2 || getCos().getType() != getSin().getType())
    return emitOpError("(C2) expects cos and sin of one even width, but got ")
           << dim;
  if (int64_t rotated = getRotated();
      rotated < 0 || rotated % 2 || rotated > dim)
    return emitOpError("(C2) expects an even number of rotated columns, at "
                       "most ")
           << dim << ", but got " << rotated;
  if (columnsOf(getX()) % dim)
    return emitOpError("(C1) expects a width that is a multiple of ")
           << dim << ", but got " << columnsOf(getX());
  if (getX().getType() != getResult().getType())
    return emitOpError("(C3) expects a result of type ") << getX().getType();
  return success();
}

LogicalResult AddBiasOp::verify() {
  if (tensorOf(getBias()).getRank() != 1 ||
      columnsOf(getX()) != columnsOf(getBias()))
    return emitOpError("(C1) expects a bias of ")
           << columnsOf(getX()) << " elements, but got "
           << columnsOf(getBias());
  if (getX().getType() != getResult().getType())
    return emitOpError("(C2) expects a result of type ") << getX().getType();
  return success();
}

LogicalResult MagnitudeOp::verify() {
  for (Value column : {getMagnitude(), getNorm()})
    if (tensorOf(column).getRank() != 1 ||
        columnsOf(getX()) != columnsOf(column))
      return emitOpError("(C1) expects ")
             << columnsOf(getX()) << " numbers, but got " << column.getType();
  if (getX().getType() != getResult().getType())
    return emitOpError("(C2) expects a result of type ") << getX().getType();
  return success();
}

LogicalResult GateRowsOp::verify() {
  if (columnsOf(getGate()) != 1 || !sameTokens(getX(), getGate()))
    return emitOpError("(C1) expects a gate of one number for each row of ")
           << getX().getType() << ", but got " << getGate().getType();
  if (getX().getType() != getResult().getType())
    return emitOpError("(C2) expects a result of type ") << getX().getType();
  return success();
}

LogicalResult NoiseOp::verify() {
  if (!getMagnitude().isFinite() || !(getMagnitude().convertToDouble() > 0))
    return emitOpError("(C1) expects a finite magnitude above 0");
  return success();
}

LogicalResult DropoutOp::verify() {
  double p = getProbability().convertToDouble();
  if (!(p > 0 && p < 1))
    return emitOpError("(C1) expects a probability between 0 and 1, but got ")
           << p;
  return success();
}

//===----------------------------------------------------------------------===//
// Views
//===----------------------------------------------------------------------===//

template <typename Op> static LogicalResult verifyView(Op op) {
  int64_t width = 0;
  Type element = tensorOf(op.getWhole()).getElementType();
  for (Value part : op.getParts()) {
    width += columnsOf(part);
    if (!sameTokens(part, op.getWhole()) || isa<QuantizedType>(element) ||
        tensorOf(part).getElementType() != element)
      return op.emitOpError("(C2) expects column ranges of ")
             << op.getWhole().getType() << ", but got " << part.getType();
  }
  if (width != columnsOf(op.getWhole()))
    return op.emitOpError("(C1) expects parts that add up to ")
           << columnsOf(op.getWhole()) << " columns, but got " << width;
  return success();
}

/// Verifies that the operands or results are row ranges of a matrix.
template <typename Op> static LogicalResult verifyRowRanges(Op op) {
  RankedTensorType whole = tensorOf(op.getWhole());
  int64_t height = 0;
  for (Value part : op.getParts()) {
    RankedTensorType type = tensorOf(part);
    if (whole.getRank() != 2 || type.getRank() != 2 ||
        columnsOf(part) != columnsOf(op.getWhole()) ||
        isa<QuantizedType>(whole.getElementType()) ||
        type.getElementType() != whole.getElementType())
      return op.emitOpError("(C2) expects row ranges of ")
             << whole << ", but got " << type;
    height += type.getDimSize(0);
  }
  if (height != whole.getDimSize(0))
    return op.emitOpError("(C1) expects parts that add up to ")
           << whole.getDimSize(0) << " rows, but got " << height;
  return success();
}

LogicalResult SplitOp::verify() {
  return getRows() ? verifyRowRanges(*this) : verifyView(*this);
}

LogicalResult ColumnSumOp::verify() {
  RankedTensorType sum = tensorOf(getResult());
  if (sum.getRank() == 1 && sum.getElementType().isF32() &&
      columnsOf(getX()) % columnsOf(getResult()) == 0)
    return success();
  return emitOpError("(C1) expects f32 [C] of rows that divide ")
         << getX().getType() << ", but got " << sum;
}

LogicalResult ConcatOp::verify() {
  return getRows() ? verifyRowRanges(*this) : verifyView(*this);
}
