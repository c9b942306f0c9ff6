// SPDX-License-Identifier: MIT

// Updates of adafactor and muon, which need several ops per tensor: sums over
// the whole tensor, or matmuls. If the gradient is not finite (`scale` is NaN),
// p and states stay unchanged.

#include "dialects/Train/Optimizers.h"
#include "dialects/Train/UpdateArithmetic.h"

using namespace mlir;
using namespace qlora::model;
using namespace qlora::train;

namespace {
/// Builds ops over one UpdatePiece.
class PieceBuilder {
public:
  PieceBuilder(OpBuilder &b, const UpdatePiece &piece)
      : b(b), loc(b.getUnknownLoc()), piece(piece),
        rows(matrixRows(piece.type)), columns(matrixColumns(piece.type)) {}

  struct Input {
    Value value;
    MapKind map = MapKind::Full;
  };
  using Body = function_ref<SmallVector<Value>(const UpdateArithmetic &,
                                               ValueRange)>;

  /// Builds row arithmetic, whose last input is the scale.
  SmallVector<Value> onRows(StringRef label, ArrayRef<Type> types,
                            ArrayRef<Input> inputs, Body body) const {
    SmallVector<Value> values;
    SmallVector<MapAttr> maps;
    for (const Input &input : inputs) {
      values.push_back(input.value);
      maps.push_back(MapAttr::get(b.getContext(), input.map, 1));
    }
    const int64_t width = matrixColumns(cast<RankedTensorType>(types.front()));
    Operation *op = buildRows(
        b, loc, types, values, width, maps, label,
        [&](OpBuilder &inner, ValueRange of) {
          UpdateArithmetic a(inner, loc, of.front().getType(), of.back(),
                             piece.kind.rateScale, piece.kind.isUndecayed);
          return body(a, of);
        });
    return SmallVector<Value>(op->getResults());
  }

  RankedTensorType type(ArrayRef<int64_t> shape) const {
    return RankedTensorType::get(shape, b.getF32Type());
  }
  RankedTensorType aNumberARow() const { return type({rows, 1}); }
  /// Returns the sum of all rows of `x`, f32 [width].
  Value sum(Value x, int64_t width) const {
    return ColumnSumOp::create(b, loc, type({width}), x);
  }
  /// Returns init + scale * x . w^T, or with InOut init + scale * x . w.
  Value product(Value x, Value w, Value init, double scale, int64_t width,
                WeightLayout layout = WeightLayout::OutIn) const {
    auto shape = cast<RankedTensorType>(x.getType()).getShape();
    return LinearOp::create(b, loc, type({shape[0], width}), x, w, init,
                            APFloat(scale), StringAttr(), layout);
  }
  /// Returns x * factor. `scale` is unused; onRows takes it as last input.
  Value times(Value x, double factor, Value scale) const {
    return onRows("times", x.getType(), {{x}, {scale, MapKind::Global}},
                  [&](const UpdateArithmetic &a, ValueRange of) {
                    return SmallVector<Value>{a.times(of[0], factor)};
                  })
        .front();
  }

  OpBuilder &b;
  const Location loc;
  const UpdatePiece &piece;
  const int64_t rows, columns;
};
} // namespace

//===----------------------------------------------------------------------===//
// Adafactor (Shazeer and Stern, 2018)
//===----------------------------------------------------------------------===//
//
// Uses the settings of transformers' Trainer: no first moment, no relative
// steps, updates clipped to a root mean square of 1. In step t the step block's
// `average` is t^-0.8.

static constexpr double kLeastSquare = 1e-30;

/// Returns p after a step along `direction`, whose sum of squares is `total`.
static Value applyClipped(const PieceBuilder &build, Value p, Value direction,
                          Value total, Value scale) {
  return build
      .onRows("adafactor", p.getType(),
              {{p}, {direction}, {total, MapKind::Global},
               {scale, MapKind::Global}},
              [&](const UpdateArithmetic &a, ValueRange of) {
                const double elements =
                    double(build.rows) * double(build.columns);
                Value rms = a.sqrt(a.times(of[2], 1 / elements));
                Value divisor = a.select(
                    a.compare(arith::CmpFPredicate::OGT, rms, a.one()), rms,
                    a.one());
                Value update = a.mul(a.div(of[1], a.wide(divisor)),
                                     a.wide(a.rate()));
                return SmallVector<Value>{
                    a.ifFinite(a.sub(a.decayed(of[0]), update), of[0])};
              })
      .front();
}

SmallVector<Value> qlora::train::buildAdafactor(OpBuilder &b,
                                                const UpdatePiece &piece,
                                                ValueRange operands) {
  PieceBuilder build(b, piece);
  Value p = operands[0], ofRows = operands[1], ofColumns = operands[2],
        g = operands[3], scale = operands[4];
  const auto global = MapKind::Global;
  auto squares = build.onRows(
      "adafactor_squares", {piece.type, build.aNumberARow()},
      {{g}, {ofRows, MapKind::Scalar}, {scale, global}},
      [](const UpdateArithmetic &a, ValueRange of) {
        Value scaled = a.scaled(of[0]);
        Value square = a.add(a.mul(scaled, scaled), a.wide(kLeastSquare));
        return SmallVector<Value>{
            square, a.ifFinite(a.byAverage(of[1], a.mean(square)), of[1])};
      });
  Value newColumns =
      build
          .onRows("adafactor_columns", ofColumns.getType(),
                  {{ofColumns}, {build.sum(squares[0], build.columns)},
                   {scale, global}},
                  [&](const UpdateArithmetic &a, ValueRange of) {
                    Value mean = a.times(of[1], 1.0 / double(build.rows));
                    return SmallVector<Value>{
                        a.ifFinite(a.byAverage(of[0], mean), of[0])};
                  })
          .front();
  auto direction = build.onRows(
      "adafactor_direction", {piece.type, build.aNumberARow()},
      {{g}, {squares[1], MapKind::Scalar}, {newColumns, MapKind::Column},
       {build.sum(squares[1], 1), global}, {scale, global}},
      [&](const UpdateArithmetic &a, ValueRange of) {
        Value mean = a.times(of[3], 1.0 / double(build.rows));
        Value root = a.mul(a.wide(a.rsqrt(a.div(of[1], mean))), a.rsqrt(of[2]));
        Value update = a.mul(root, a.scaled(of[0]));
        return SmallVector<Value>{update, a.sum(a.mul(update, update))};
      });
  Value newP = applyClipped(build, p, direction[0],
                            build.sum(direction[1], 1), scale);
  return {newP, squares[1], newColumns};
}

SmallVector<Value> qlora::train::buildAdafactorVector(OpBuilder &b,
                                                      const UpdatePiece &piece,
                                                      ValueRange operands) {
  PieceBuilder build(b, piece);
  Value p = operands[0], squares = operands[1], g = operands[2],
        scale = operands[3];
  auto direction = build.onRows(
      "adafactor_vector", {piece.type, piece.type, build.aNumberARow()},
      {{g}, {squares}, {scale, MapKind::Global}},
      [](const UpdateArithmetic &a, ValueRange of) {
        Value scaled = a.scaled(of[0]);
        Value square = a.add(a.mul(scaled, scaled), a.wide(kLeastSquare));
        Value average = a.byAverage(of[1], square);
        Value update = a.mul(a.rsqrt(average), scaled);
        return SmallVector<Value>{a.ifFinite(average, of[1]), update,
                                  a.sum(a.mul(update, update))};
      });
  return {applyClipped(build, p, direction[1], direction[2], scale),
          direction[0]};
}

//===----------------------------------------------------------------------===//
// Muon (Jordan et al., 2024)
//===----------------------------------------------------------------------===//
//
// Follows torch.optim.Muon with its defaults: Nesterov momentum, orthogonalized
// by five Newton-Schulz steps,
//
//   G = X X^T,  X = a X + (b G + c G G) X      (G = X^T X where X is tall)
//
// in f32, where torch rounds every matmul to bf16.

static constexpr double kMomentum = 0.95, kLeastNorm = 1e-7;
static constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
static constexpr int kNewtonSchulzSteps = 5;

static Value newtonSchulz(const PieceBuilder &build, Value x, Value scale) {
  const bool isTall = build.rows > build.columns;
  const int64_t side = std::min(build.rows, build.columns);
  for (int step = 0; step < kNewtonSchulzSteps; ++step) {
    Value gram = isTall ? Value(LinearWeightGradOp::create(
                              build.b, build.loc, build.type({side, side}), x,
                              x, Value(), APFloat(1.0)))
                        : build.product(x, x, Value(), 1, side);
    Value update =
        build.product(gram, gram, build.times(gram, kB, scale), kC, side);
    Value grown = build.times(x, kA, scale);
    x = isTall ? build.product(x, update, grown, 1, build.columns)
               : build.product(update, x, grown, 1, build.columns,
                               WeightLayout::InOut);
  }
  return x;
}

SmallVector<Value> qlora::train::buildMuon(OpBuilder &b,
                                           const UpdatePiece &piece,
                                           ValueRange operands) {
  PieceBuilder build(b, piece);
  Value p = operands[0], momentum = operands[1], g = operands[2],
        scale = operands[3];
  const auto global = MapKind::Global;
  auto moved = build.onRows(
      "muon_momentum", {piece.type, piece.type, build.aNumberARow()},
      {{g}, {momentum}, {scale, global}},
      [](const UpdateArithmetic &a, ValueRange of) {
        Value scaled = a.scaled(of[0]);
        Value average =
            a.add(of[1], a.times(a.sub(scaled, of[1]), 1 - kMomentum));
        Value ahead = a.add(scaled, a.times(a.sub(average, scaled), kMomentum));
        return SmallVector<Value>{a.ifFinite(average, of[1]), ahead,
                                  a.sum(a.mul(ahead, ahead))};
      });
  Value x = build
                .onRows("muon_start", {piece.type},
                        {{moved[1]}, {build.sum(moved[2], 1), global},
                         {scale, global}},
                        [](const UpdateArithmetic &a, ValueRange of) {
                          Value norm = a.sqrt(of[1]), least =
                                                          a.number(kLeastNorm);
                          Value isLarge = a.compare(
                              arith::CmpFPredicate::OGT, norm, least);
                          return SmallVector<Value>{a.div(
                              of[0], a.wide(a.select(isLarge, norm, least)))};
                        })
                .front();
  x = newtonSchulz(build, x, scale);
  const double ratio =
      std::sqrt(std::max(1.0, double(build.rows) / double(build.columns)));
  Value newP =
      build
          .onRows("muon", {piece.type}, {{p}, {x}, {scale, global}},
                  [&](const UpdateArithmetic &a, ValueRange of) {
                    Value rate = a.mul(a.rate(), a.number(ratio));
                    Value after = a.sub(a.decayed(of[0]),
                                        a.mul(a.wide(rate), of[1]));
                    return SmallVector<Value>{a.ifFinite(after, of[0])};
                  })
          .front();
  return {newP, moved[0]};
}
