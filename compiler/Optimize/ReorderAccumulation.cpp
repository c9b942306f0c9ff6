// SPDX-License-Identifier: MIT

// reorder-accumulation: in sums of matmuls, matmuls with fewer terms come
// first.
//
//   %y = model.linear %x, %w             // 4096 terms per element
//   %z = model.linear %a, %b init %y     // 16
//
// becomes
//
//   %y = model.linear %a, %b
//   %z = model.linear %x, %w init %y
//
// and, after concat-siblings,
//
//   %y = model.linear %x, %w
//   %0, %1 = model.split %y
//   %q = model.linear %qa, %bq init %0
//   %k = model.linear %ka, %bk init %1
//
// becomes
//
//   %0 = model.linear %qa, %bq
//   %1 = model.linear %ka, %bk
//   %c = model.concat %0, %1
//   %y = model.linear %x, %w init %c
//   %q, %k = model.split %y
//
// An accumulating matmul also reads each element of the sum. With few terms it
// is memory-bound, and the read makes it slower. With many terms it is
// compute-bound, and a GEMM library overlaps the read.
//
// The matmuls with few terms, here of %q and %k, need not be adjacent: a bias
// may be added to %q before %k is computed. The pass moves them together. If a
// range of the joined matmul has no such matmul, nothing changes; this is so if
// only q and v are adapted, but q, k and v are joined.
//
// Runs after concat-siblings, which joins matmuls that do not accumulate.
// Matmuls of experts and of 8 bits are our own kernels, without this overlap.

#include "compiler/Differentiate/Accumulate.h"
#include "compiler/Passes.h"
#include "dialects/Train/Train.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_REORDERACCUMULATION
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class ReorderAccumulationPass
    : public qlora::impl::ReorderAccumulationBase<ReorderAccumulationPass> {
  void runOnOperation() override;
};
} // namespace

/// Returns the number of terms per element of the result.
static int64_t termsOf(WeightedMatmul product) {
  return product.getWeightType().getDimSize(product.getInDimension());
}

/// Returns the matmul that adds to `part`, if nothing else reads `part` and the
/// matmul has fewer terms than `wide`; else null.
static WeightedMatmul thinOn(Value part, WeightedMatmul wide) {
  if (!part.hasOneUse())
    return {};
  auto thin = dyn_cast<WeightedMatmul>(*part.user_begin());
  const bool adds = thin && isa<AccumulatingOp>(thin.getOperation()) &&
                    thin.getInit() == part && thin.getProduct() &&
                    !thin.getGroupOffsets() && termsOf(thin) < termsOf(wide);
  return adds ? thin : WeightedMatmul();
}

/// Returns the matmuls that add to the columns of `wide`, in order. Returns an
/// empty list if nothing adds to one of the column ranges.
static SmallVector<WeightedMatmul> findThin(WeightedMatmul wide,
                                            SplitOp split) {
  SmallVector<WeightedMatmul> found;
  for (Value part : split ? ValueRange(split.getParts())
                          : ValueRange(wide.getProduct())) {
    WeightedMatmul thin = thinOn(part, wide);
    if (!thin)
      return {};
    found.push_back(thin);
  }
  return found;
}

/// Returns whether `op` can be moved directly after `first`. Ops that compute
/// its operands, except `sum`, must move too, so they may not be in `thin`.
static bool canFollow(Operation *op, Value sum, Operation *first,
                      ArrayRef<WeightedMatmul> thin) {
  return llvm::all_of(op->getOperands(), [&](Value operand) {
    Operation *maker = operand.getDefiningOp();
    if (operand == sum || !maker || maker->isBeforeInBlock(first))
      return true;
    const bool isThin = llvm::any_of(thin, [&](WeightedMatmul product) {
      return product.getOperation() == maker;
    });
    return !isThin && canFollow(maker, sum, first, thin);
  });
}

/// Moves all matmuls directly after the first, in order, and removes their
/// accumulators. Returns the last matmul. If a matmul depends on another one
/// except by accumulation, changes nothing and returns null.
static Operation *gather(ArrayRef<WeightedMatmul> thin) {
  WeightedMatmul first = *llvm::min_element(
      thin, [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  for (WeightedMatmul product : thin)
    if (product != first && !canFollow(product, product.getInit(), first, thin))
      return nullptr;
  Operation *last = first;
  for (WeightedMatmul product : thin) {
    cast<AccumulatingOp>(product.getOperation()).setAccumulator(Value());
    if (product == first)
      continue;
    moveAhead(product, last->getNextNode());
    last = product;
  }
  return last;
}

static Value joined(ArrayRef<WeightedMatmul> thin, WeightedMatmul wide) {
  if (thin.size() == 1)
    return thin.front()->getResult(0);
  SmallVector<Value> parts;
  for (WeightedMatmul product : thin)
    parts.push_back(product->getResult(0));
  OpBuilder builder(wide);
  auto whole = ConcatOp::create(builder, wide.getLoc(),
                                wide.getProduct().getType(), parts,
                                /*rows=*/UnitAttr());
  copyStage(wide, whole);
  return whole.getWhole();
}

static void addLast(WeightedMatmul wide) {
  Value y = wide.getProduct();
  auto split = y.hasOneUse() ? dyn_cast<SplitOp>(*y.user_begin()) : SplitOp();
  if (split && split.getRows())
    return;
  const SmallVector<WeightedMatmul> thin = findThin(wide, split);
  if (thin.empty())
    return;
  Operation *last = gather(thin);
  if (!last)
    return;
  wide->moveAfter(last);
  if (split)
    split->moveAfter(wide);
  for (auto [index, product] : llvm::enumerate(thin)) {
    WeightedMatmul part = product;
    part.getProduct().replaceAllUsesWith(split ? split.getParts()[index] : y);
  }
  cast<AccumulatingOp>(wide.getOperation()).setAccumulator(joined(thin, wide));
}

void ReorderAccumulationPass::runOnOperation() {
  SmallVector<WeightedMatmul> products;
  for (Operation &op : getOperation().getBody().front())
    if (auto product = dyn_cast<WeightedMatmul>(op))
      if (isa<AccumulatingOp>(op) && product.getProduct() &&
          !product.getGroupOffsets() && !product.getInt8Threshold())
        products.push_back(product);
  for (WeightedMatmul product : products)
    if (!product.getInit())
      addLast(product);
}
