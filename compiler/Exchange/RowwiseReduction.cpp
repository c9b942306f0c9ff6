// SPDX-License-Identifier: MIT

// compress-gradients in the forms bf16 and int8: reduces rows of the flat
// arenas.
//
//   train.all_reduce 0 offset 0 elements 5120     // 1024 of statistics
//   ...
//
// becomes, in bf16,
//
//   train.all_reduce 0 offset 0 elements 1024
//   %g = train.flat gradient {row = 0} : tensor<4x1024xf32>
//   %r = train.round %g : ... tensor<4x1024xbf16>
//   %s = model.all_sum %r {ranks = dp}
//   ...                                  // up to the next bucket
//   %w = train.round %s : ... tensor<4x1024xf32>
//   train.store_flat gradient, %w {row = 0}
//
// and in int8
//
//   %x = model.add %g, %e                // %e: train.flat residual
//   %codes, %scales = train.encode_rows %x
//   %left = train.left_by_codes %x, %codes, %scales
//   train.store_flat residual, %left     // for the next step
//   %mine = model.all_to_all %codes
//   ...
//   %sum = ...                           // over ranks, of decoded rows
//   %codes2, %scales2 = train.encode_rows %sum
//   ...                                  // store its error as residual, too
//   %all = model.all_gather %codes2
//   ...
//   %w = train.decode_rows %all, ...
//   train.store_flat gradient, %w
//
// In int8, each of N ranks receives one N-th of the rows from all ranks and
// adds them in rank order. Scales are exchanged like codes. A rank sends about
// 2 bytes per element, whatever N is (qgZ of ZeRO++, Wang et al., 2023).
//
// All ranks decode the same bytes. Each rank adds its quantization error to its
// gradient of the next step (Seide et al., 2014). Each kBlock elements share a
// scale (Dettmers, 2016).
//
// Ranges are whole rows of the arena, in multiples that the ranks can divide. A
// bucket's remaining rows are sent with the next bucket.

#include "compiler/Exchange/GradientReduction.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

/// Elements that share a scale.
static constexpr int64_t kBlock = 256;

namespace {

/// Rows of the flat arenas that are reduced with fewer bits, and the values
/// that the latest stage built for them.
struct Summed {
  int64_t row, rows; ///< counted from the first parameter
  Value sent;        ///< values or codes being reduced or gathered
  Value scales;      ///< scales of the codes
};

/// Builds the ops of rows, range by range.
class RowwiseReduction : public GradientReduction {
public:
  RowwiseReduction(ArrayRef<Summed> ranges, int64_t ranks)
      : ranks(ranks), ranges(ranges) {}
  void build(OpBuilder &b, unsigned stage) override {
    for (Summed &range : ranges)
      build(b, range, stage);
  }

protected:
  virtual void build(OpBuilder &b, Summed &range, unsigned stage) const = 0;
  Type matrix(Type element, int64_t rows, int64_t columns) const {
    return RankedTensorType::get({rows, columns}, element);
  }
  Value read(OpBuilder &b, FlatKind kind, const Summed &range, int64_t columns,
             int64_t pieces = 1) const {
    const int64_t rows = range.rows * kFlatColumns / columns / pieces;
    return FlatOp::create(b, b.getUnknownLoc(),
                          matrix(b.getF32Type(), rows, columns), kind,
                          FlatSymbolRefAttr(), /*statistics=*/false, range.row,
                          pieces, /*of_run=*/true);
  }
  void store(OpBuilder &b, FlatKind kind, const Summed &range, Value value,
             int64_t pieces = 1) const {
    StoreFlatOp::create(b, b.getUnknownLoc(), kind, FlatSymbolRefAttr(), value,
                        range.row, pieces, /*of_run=*/true);
  }

  const int64_t ranks;

private:
  SmallVector<Summed> ranges;
};

class RoundedReduction : public RowwiseReduction {
public:
  using RowwiseReduction::RowwiseReduction;

private:
  void build(OpBuilder &b, Summed &range, unsigned stage) const override;
};

class CodedReduction : public RowwiseReduction {
public:
  CodedReduction(ArrayRef<Summed> ranges, int64_t ranks, bool feedsBack)
      : RowwiseReduction(ranges, ranks), feedsBack(feedsBack) {}

private:
  void build(OpBuilder &b, Summed &range, unsigned stage) const override;
  void encode(OpBuilder &b, Summed &range, Value x) const;
  Value sum(OpBuilder &b, const Summed &range) const;

  const bool feedsBack;
};

} // namespace

void RoundedReduction::build(OpBuilder &b, Summed &range,
                             unsigned stage) const {
  const auto rounded = [&](Value x, Type type) {
    return RoundOp::create(b, b.getUnknownLoc(),
                           matrix(type, range.rows, kFlatColumns), x);
  };
  if (stage > 0)
    return store(b, FlatKind::Gradient, range,
                 rounded(range.sent, b.getF32Type()));
  Value gradient = read(b, FlatKind::Gradient, range, kFlatColumns);
  range.sent = AllSumOp::create(b, b.getUnknownLoc(),
                                rounded(gradient, b.getBF16Type()), Ranks::DP);
}

void CodedReduction::encode(OpBuilder &b, Summed &range, Value x) const {
  const int64_t rows = matrixRows(cast<RankedTensorType>(x.getType()));
  auto codes = EncodeRowsOp::create(b, b.getUnknownLoc(),
                                    matrix(b.getI8Type(), rows, kBlock),
                                    matrix(b.getF32Type(), rows, 1), x);
  range.sent = codes.getCodes();
  range.scales = codes.getScales();
}

/// Returns the sum of all ranks' decoded values, added in rank order.
Value CodedReduction::sum(OpBuilder &b, const Summed &range) const {
  Location loc = b.getUnknownLoc();
  const int64_t rows = range.rows * kFlatColumns / kBlock / ranks;
  const auto partsOf = [&](Value whole, Type part) {
    return SplitOp::create(b, loc, SmallVector<Type>(ranks, part), whole,
                           /*rows=*/true);
  };
  SplitOp codes = partsOf(range.sent, matrix(b.getI8Type(), rows, kBlock)),
          scales = partsOf(range.scales, matrix(b.getF32Type(), rows, 1));
  Type type = matrix(b.getF32Type(), rows, kBlock);
  Value sum;
  for (auto [code, scale] :
       llvm::zip_equal(codes.getParts(), scales.getParts())) {
    Value one = DecodeRowsOp::create(b, loc, type, code, scale);
    sum = sum ? model::AddOp::create(b, loc, type, sum, one).getResult() : one;
  }
  return sum;
}

void CodedReduction::build(OpBuilder &b, Summed &range, unsigned stage) const {
  Location loc = b.getUnknownLoc();
  const auto add = [&](Value x, Value y) -> Value {
    return model::AddOp::create(b, loc, x.getType(), x, y);
  };
  if (stage == 2)
    return store(
        b, FlatKind::Gradient, range,
        DecodeRowsOp::create(
            b, loc,
            matrix(b.getF32Type(), range.rows * kFlatColumns / kBlock, kBlock),
            range.sent, range.scales));
  // Stage 0 encodes all rows; stage 1 encodes the sums of this rank's rows.
  const int64_t pieces = stage == 0 ? 1 : ranks;
  Value x =
      stage == 0 ? read(b, FlatKind::Gradient, range, kBlock) : sum(b, range);
  Value residual;
  if (feedsBack)
    residual = read(b, FlatKind::Residual, range, kBlock, pieces);
  if (feedsBack && stage == 0)
    x = add(x, residual);
  encode(b, range, x);
  if (feedsBack) {
    Value left =
        LeftByCodesOp::create(b, loc, x.getType(), x, range.sent, range.scales);
    store(b, FlatKind::Residual, range, stage == 0 ? left : add(residual, left),
          pieces);
  }
  for (Value *value : {&range.sent, &range.scales}) {
    auto type = cast<RankedTensorType>(value->getType());
    *value =
        stage == 0
            ? AllToAllOp::create(b, loc, type, *value, Ranks::DP).getResult()
            : AllGatherOp::create(
                  b, loc,
                  type.clone({ranks * type.getDimSize(0), type.getDimSize(1)}),
                  *value, Ranks::DP)
                  .getResult();
  }
}

/// Returns the parameter rows in each range, with the first row and the end
/// rounded down to multiples of `multiple`.
static SmallVector<Summed> rowsOf(ArrayRef<GradientRange> ranges,
                                  int64_t multiple) {
  const auto rowOf = [&](int64_t element) {
    return std::max<int64_t>(0, element / kFlatColumns - 1) / multiple *
           multiple;
  };
  SmallVector<Summed> found;
  for (const GradientRange &range : ranges) {
    const int64_t first = rowOf(range.offset);
    const int64_t rows = rowOf(range.offset + range.elements) - first;
    if (rows > 0)
      found.push_back({first, rows, {}, {}});
  }
  return found;
}

std::unique_ptr<GradientReduction>
qlora::makeRoundedReduction(ArrayRef<GradientRange> ranges) {
  return std::make_unique<RoundedReduction>(rowsOf(ranges, 1), 1);
}

std::unique_ptr<GradientReduction>
qlora::makeCodedReduction(ArrayRef<GradientRange> ranges, int64_t ranks,
                          bool feedsBack) {
  return std::make_unique<CodedReduction>(rowsOf(ranges, ranks), ranks,
                                          feedsBack);
}
