// SPDX-License-Identifier: MIT

// compress-gradients in the form power_sgd (Vogels et al., 2019), in the order
// of torch's powerSGD_hook. For a matrix [n, m] of a rank's gradients, with P
// and Q of r rows (dialects/Train/LowRank.h):
//
//   %x = model.add %g, %e                       // %e: train.flat residual
//   train.store_flat residual, %x
//   %q = rows orthonormal %basis                // train.flat state
//   %p = model.linear %q, %x                    // Q X^T, [r, n]
//   %P = model.all_sum (model.concat %p, ...)   // of the bucket's matrices
//   ...
//   %o = rows orthonormal %P
//   %q = model.linear %o, %x in_out             // P X, [r, m]
//   %Q = model.all_sum (model.concat %q, ...)
//   ...
//   train.store_flat state, rows keep %Q, %basis
//   %w = train.linear_weight_grad %o, %Q        // P^T Q, [n, m]
//   train.store_flat gradient, %w
//   train.store_flat residual, rows left %x, %w // x - w / N
//
// P and Q are sums over the ranks, so all ranks compute the same bits of w, the
// projection of the sum of all x onto P. Each of N ranks keeps x - w / N as a
// residual, so the residuals of all ranks sum to the error of w.
//
// A row of P that depends linearly on earlier rows becomes zero, and the basis
// keeps its old row. This happens for a matrix of zeros, such as A's gradient
// while LoRA's B is zero. Torch's row would become NaN, or zero forever. If a
// gradient is not finite, w is not finite either, and the update skips the
// step. Then the basis does not change, and the matrix's residuals become 0.
//
// Tensors that would not shrink are summed exactly, one message per bucket.

#include "compiler/Exchange/GradientReduction.h"
#include "dialects/Model/Arithmetic.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

/// Smallest norms of a row after orthogonalization: relative to its norm before
/// (kLeastShare), and absolute. Smaller norms are rounding errors.
static constexpr double kLeastShare = 1e-6, kLeastNorm = 1e-30;

namespace {

/// A tensor of the bucket, and its P and Q once they are reduced.
struct Sum {
  const SummedTensor *tensor;
  Value p, q;
};

class PowerSgdReduction : public GradientReduction {
public:
  PowerSgdReduction(int64_t rank, int64_t ranks, bool feedsBack)
      : rank(rank), ranks(ranks), feedsBack(feedsBack) {}
  void add(const SummedTensor &tensor) {
    (tensor.basis ? products : exact).push_back({&tensor, {}, {}});
  }
  void build(OpBuilder &b, unsigned stage) override;

private:
  using Body = function_ref<SmallVector<Value>(const Arithmetic &, ValueRange)>;

  RankedTensorType type(OpBuilder &b, int64_t rows, int64_t columns) const {
    return RankedTensorType::get({rows, columns}, b.getF32Type());
  }
  Value read(OpBuilder &b, FlatKind kind, const SummedTensor &tensor) const;
  Value readExact(OpBuilder &b, const SummedTensor &tensor) const;
  Value readBasis(OpBuilder &b, const SummedTensor &tensor) const;
  void store(OpBuilder &b, FlatKind kind, const SummedTensor &tensor,
             Value value) const;
  SmallVector<Value> onRows(OpBuilder &b, StringRef label, ArrayRef<Type> types,
                            ValueRange inputs, Body body) const;
  Value orthonormal(OpBuilder &b, Value rows) const;
  Value sum(OpBuilder &b, ArrayRef<Value> parts, bool isOfRows) const;
  SmallVector<Value> split(OpBuilder &b, Value whole, ArrayRef<Type> types,
                           bool isOfRows) const;
  void project(OpBuilder &b);
  void findRows(OpBuilder &b);
  void finish(OpBuilder &b);
  void finishExact(OpBuilder &b);
  void keepBasis(OpBuilder &b, const Sum &sum) const;
  void keepLeft(OpBuilder &b, const SummedTensor &tensor, Value whole) const;

  const int64_t rank, ranks;
  const bool feedsBack;
  SmallVector<Sum> products, exact;
  /// `sent` has the all-reduced P's of the bucket's matrices, later their Q's.
  /// `sentExact` has the all-reduced gradients of uncompressed tensors.
  Value sent, sentExact;
};

} // namespace

Value PowerSgdReduction::read(OpBuilder &b, FlatKind kind,
                              const SummedTensor &tensor) const {
  return FlatOp::create(b, b.getUnknownLoc(),
                        type(b, tensor.rows, tensor.columns), kind,
                        tensor.parameter, /*statistics=*/false, tensor.row);
}

/// Returns a tensor's gradient as one column, so that gradients can be stacked.
Value PowerSgdReduction::readExact(OpBuilder &b,
                                   const SummedTensor &tensor) const {
  return FlatOp::create(b, b.getUnknownLoc(), type(b, tensor.elements(), 1),
                        FlatKind::Gradient, tensor.parameter,
                        /*statistics=*/false, tensor.row * tensor.columns);
}

Value PowerSgdReduction::readBasis(OpBuilder &b,
                                   const SummedTensor &tensor) const {
  return FlatOp::create(b, b.getUnknownLoc(), type(b, rank, tensor.columns),
                        FlatKind::State, FlatSymbolRefAttr(),
                        /*statistics=*/false, *tensor.basis);
}

void PowerSgdReduction::store(OpBuilder &b, FlatKind kind,
                              const SummedTensor &tensor, Value value) const {
  StoreFlatOp::create(b, b.getUnknownLoc(), kind, tensor.parameter, value,
                      tensor.row);
}

SmallVector<Value> PowerSgdReduction::onRows(OpBuilder &b, StringRef label,
                                             ArrayRef<Type> types,
                                             ValueRange inputs,
                                             Body body) const {
  Location loc = b.getUnknownLoc();
  const SmallVector<MapAttr> maps(
      inputs.size(), MapAttr::get(b.getContext(), MapKind::Full, 1));
  Operation *op =
      buildRows(b, loc, types, inputs,
                matrixColumns(cast<RankedTensorType>(types.front())), maps,
                label, [&](OpBuilder &inner, ValueRange of) {
                  return body(Arithmetic(inner, loc), of);
                });
  return SmallVector<Value>(op->getResults());
}

/// Returns the component of `x` orthogonal to `directions`, normalized.
static Value directionOf(const Arithmetic &a, Value x,
                         ArrayRef<Value> directions) {
  const auto norm = [&](Value row) { return a.sqrt(a.sum(a.mul(row, row))); };
  const auto wide = [&](Value number) { return a.splat(number, x.getType()); };
  Value least = a.times(norm(x), kLeastShare);
  for (Value direction : directions)
    x = a.sub(x, a.mul(wide(a.sum(a.mul(direction, x))), direction));
  Value left = norm(x), none = a.number(kLeastNorm);
  // If `left` is not finite, both are false, and `factor` becomes NaN.
  Value isSmall = a.compare(arith::CmpFPredicate::OLT, left, least);
  Value isNone = a.compare(arith::CmpFPredicate::OLT, left, none);
  Value factor = a.div(a.add(a.sub(left, left), a.number(1)), left);
  factor = a.select(isSmall, a.number(0), factor);
  factor = a.select(isNone, a.number(0), factor);
  return a.mul(x, wide(factor));
}

/// Orthonormalizes the rows one after the other (Gram-Schmidt). A row that
/// depends linearly on earlier rows becomes zero.
Value PowerSgdReduction::orthonormal(OpBuilder &b, Value rows) const {
  const auto row =
      type(b, 1, matrixColumns(cast<RankedTensorType>(rows.getType())));
  const SmallVector<Type> types(rank, row);
  SmallVector<Value> made =
      onRows(b, "orthonormal", types, split(b, rows, types, /*isOfRows=*/true),
             [](const Arithmetic &a, ValueRange of) {
               SmallVector<Value> directions;
               for (Value x : of)
                 directions.push_back(directionOf(a, x, directions));
               return directions;
             });
  if (rank == 1)
    return made.front();
  return ConcatOp::create(b, b.getUnknownLoc(), rows.getType(), made,
                          /*rows=*/true);
}

/// All-reduces all parts in one message.
Value PowerSgdReduction::sum(OpBuilder &b, ArrayRef<Value> parts,
                             bool isOfRows) const {
  Value whole = parts.front();
  if (parts.size() > 1) {
    auto first = cast<RankedTensorType>(whole.getType());
    int64_t extent = 0;
    for (Value part : parts)
      extent += cast<RankedTensorType>(part.getType()).getDimSize(!isOfRows);
    whole = ConcatOp::create(b, b.getUnknownLoc(),
                             isOfRows ? type(b, extent, first.getDimSize(1))
                                      : type(b, first.getDimSize(0), extent),
                             parts, isOfRows);
  }
  return AllSumOp::create(b, b.getUnknownLoc(), whole, Ranks::DP);
}

SmallVector<Value> PowerSgdReduction::split(OpBuilder &b, Value whole,
                                            ArrayRef<Type> types,
                                            bool isOfRows) const {
  if (types.size() == 1)
    return {whole};
  auto parts = SplitOp::create(b, b.getUnknownLoc(), types, whole, isOfRows);
  return SmallVector<Value>(parts.getParts());
}

/// Computes P, and starts the reductions of P and of uncompressed tensors.
void PowerSgdReduction::project(OpBuilder &b) {
  SmallVector<Value> parts;
  for (const Sum &one : products) {
    const SummedTensor &tensor = *one.tensor;
    Value x = read(b, FlatKind::Gradient, tensor);
    if (feedsBack) {
      x = model::AddOp::create(b, b.getUnknownLoc(), x.getType(), x,
                               read(b, FlatKind::Residual, tensor));
      store(b, FlatKind::Residual, tensor, x);
    }
    parts.push_back(
        LinearOp::create(b, b.getUnknownLoc(), type(b, rank, tensor.rows),
                         orthonormal(b, readBasis(b, tensor)), x, Value(),
                         APFloat(1.0), StringAttr(), WeightLayout::OutIn));
  }
  if (!parts.empty())
    sent = sum(b, parts, /*isOfRows=*/false);
  parts.clear();
  for (const Sum &one : exact)
    parts.push_back(readExact(b, *one.tensor));
  if (!parts.empty())
    sentExact = sum(b, parts, /*isOfRows=*/true);
}

void PowerSgdReduction::finishExact(OpBuilder &b) {
  auto types = llvm::map_to_vector(exact, [&](const Sum &one) -> Type {
    return type(b, one.tensor->elements(), 1);
  });
  for (auto [one, value] :
       llvm::zip_equal(exact, split(b, sentExact, types, /*isOfRows=*/true)))
    StoreFlatOp::create(b, b.getUnknownLoc(), FlatKind::Gradient,
                        one.tensor->parameter, value,
                        one.tensor->row * one.tensor->columns);
}

/// Orthonormalizes P, computes Q, and starts the reduction of Q.
void PowerSgdReduction::findRows(OpBuilder &b) {
  auto types = llvm::map_to_vector(products, [&](const Sum &one) -> Type {
    return type(b, rank, one.tensor->rows);
  });
  SmallVector<Value> parts;
  for (auto [one, value] :
       llvm::zip_equal(products, split(b, sent, types, /*isOfRows=*/false))) {
    one.p = orthonormal(b, value);
    Value x = read(b, feedsBack ? FlatKind::Residual : FlatKind::Gradient,
                   *one.tensor);
    parts.push_back(LinearOp::create(
        b, b.getUnknownLoc(), type(b, rank, one.tensor->columns), one.p, x,
        Value(), APFloat(1.0), StringAttr(), WeightLayout::InOut));
  }
  sent = sum(b, parts, /*isOfRows=*/false);
}

/// Stores Q for the next step; keeps the old row where Q is zero.
void PowerSgdReduction::keepBasis(OpBuilder &b, const Sum &one) const {
  Value before = readBasis(b, *one.tensor);
  SmallVector<Value> kept =
      onRows(b, "keep_basis", before.getType(), {one.q, before},
             [](const Arithmetic &a, ValueRange of) {
               Value q = of[0], total = a.sum(a.mul(q, q));
               Value zero = a.sub(total, total); // NaN if not finite
               Value isThere =
                   a.compare(arith::CmpFPredicate::OGT,
                             a.splat(a.add(total, zero), q.getType()),
                             a.constant(0, q.getType()));
               return SmallVector<Value>{a.select(isThere, q, of[1])};
             });
  StoreFlatOp::create(b, b.getUnknownLoc(), FlatKind::State,
                      FlatSymbolRefAttr(), kept.front(), *one.tensor->basis);
}

/// Stores the residual: x minus 1/N of the approximated sum, or 0 if that is
/// not finite.
void PowerSgdReduction::keepLeft(OpBuilder &b, const SummedTensor &tensor,
                                 Value whole) const {
  SmallVector<Value> left = onRows(
      b, "left_by_product", whole.getType(),
      {read(b, FlatKind::Residual, tensor), whole},
      [&](const Arithmetic &a, ValueRange of) {
        Value zero = a.constant(0, of[0].getType());
        Value rest = a.sub(
            of[0], a.div(of[1], a.constant(double(ranks), of[1].getType())));
        Value none = a.sub(rest, rest);
        Value isFinite = a.compare(arith::CmpFPredicate::OEQ, none, none);
        return SmallVector<Value>{a.select(isFinite, rest, zero)};
      });
  store(b, FlatKind::Residual, tensor, left.front());
}

void PowerSgdReduction::finish(OpBuilder &b) {
  auto types = llvm::map_to_vector(products, [&](const Sum &one) -> Type {
    return type(b, rank, one.tensor->columns);
  });
  for (auto [one, value] :
       llvm::zip_equal(products, split(b, sent, types, /*isOfRows=*/false))) {
    one.q = value;
    keepBasis(b, one);
    Value whole = LinearWeightGradOp::create(
        b, b.getUnknownLoc(), type(b, one.tensor->rows, one.tensor->columns),
        one.p, one.q, Value(), APFloat(1.0));
    store(b, FlatKind::Gradient, *one.tensor, whole);
    if (feedsBack)
      keepLeft(b, *one.tensor, whole);
  }
}

void PowerSgdReduction::build(OpBuilder &b, unsigned stage) {
  if (stage == 0)
    return project(b);
  if (stage == 1 && !exact.empty())
    finishExact(b);
  if (products.empty())
    return;
  if (stage == 1)
    findRows(b);
  else
    finish(b);
}

LogicalResult qlora::checkLowRank(ModuleOp module, const LowRankPlan &plan) {
  if (llvm::any_of(plan.tensors, [](const SummedTensor &one) {
        return one.basis.has_value();
      }))
    return success();
  return module.emitError("--powersgd-rank ")
         << plan.rank
         << " compresses no trainable tensor: rows * columns must be more than "
            "2 * (rows + columns) * rank; lower it, or use another "
            "--ddp-comm-hook";
}

/// A tensor belongs to the bucket whose ranges contain its last element.
std::unique_ptr<GradientReduction>
qlora::makePowerSgdReduction(const LowRankPlan &plan, ModuleOp module,
                             ArrayRef<GradientRange> ranges, int64_t ranks,
                             bool feedsBack) {
  auto names = module->getAttrOfType<ArrayAttr>("train.layout");
  auto offsets = module->getAttrOfType<DenseI64ArrayAttr>("train.offsets");
  llvm::StringMap<int64_t> starts;
  for (auto [name, offset] : llvm::zip_equal(names, offsets.asArrayRef()))
    starts[cast<FlatSymbolRefAttr>(name).getValue()] = offset;
  auto sums = std::make_unique<PowerSgdReduction>(plan.rank, ranks, feedsBack);
  for (const SummedTensor &tensor : plan.tensors) {
    const int64_t last = starts.lookup(tensor.parameter.getValue()) +
                         tensor.row * tensor.columns + tensor.elements() - 1;
    if (llvm::any_of(ranges, [&](const GradientRange &range) {
          return last >= range.offset && last < range.offset + range.elements;
        }))
      sums->add(tensor);
  }
  return sums;
}
