// SPDX-License-Identifier: MIT

// concat-siblings: joins frozen matmuls of the same x, and the sums of their
// input gradients.
//
//   %nq = train.decode %wq                    %nk = train.decode %wk
//   %q = model.linear %x, %nq                 %k = model.linear %x, %nk
//   %0 = model.linear %dq, %nq layout in_out
//   %1 = model.linear %dk, %nk layout in_out init %0
//
// becomes
//
//   %n = model.concat %nq, %nk {rows}         // decoded into one scratch
//   %y = model.linear %x, %n
//   %q, %k = model.split %y                   // column ranges of its rows
//   %dy = model.concat %dq, %dk
//   %1 = model.linear %dy, %n layout in_out
//
// One GEMM reads x once, and one GEMM writes dx once, not once per weight.
// All concats and splits are views: a dy is written in place, and readers of q
// stride over k. So siblings are joined only if nothing must be copied:
//  - each dy is written by a row or library op, to a range of one concatenation
//    only;
//  - the backward reads all joined results or none, because a saved range keeps
//    the whole buffer alive. Results offloaded to the host count as read, so
//    that offloading does not change GEMM shapes;
//  - a weight's first dimension is the matmul's output (same x) or its input
//    (summed gradients). Weights are stacked by that dimension, because a
//    decode writes whole rows;
//  - a decoded weight is a range of one concatenation only. So if the backward
//    uses the forward's decodes, it uses the forward's groups.
//
// Runs after plan-dequant, which decides what is decoded into scratch, and
// after the gradient, whose sums are then chains of `init`s.

#include "compiler/Differentiate/Accumulate.h"
#include "compiler/Memory/StepMemory.h"
#include "compiler/Optimize/OpCost.h"
#include "compiler/Passes.h"
#include "dialects/Train/Train.h"

#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

namespace qlora {
#define GEN_PASS_DEF_CONCATSIBLINGS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

class SiblingConcatenator {
public:
  explicit SiblingConcatenator(StepOp step) : step(step) {}
  void run();

private:
  void joinProducts(ArrayRef<WeightedMatmul> siblings);
  void joinSum(WeightedMatmul last);
  bool canStack(ArrayRef<DecodeOp> decodes) const;
  Value stack(ArrayRef<DecodeOp> decodes, Operation *user);
  SmallVector<WeightedMatmul> chooseMembers(ArrayRef<WeightedMatmul> chain);

  StepOp step;
  DenseMap<Operation *, ConcatOp> stacks; ///< by DecodeOp of a part
};

class ConcatSiblingsPass
    : public qlora::impl::ConcatSiblingsBase<ConcatSiblingsPass> {
  void runOnOperation() override { SiblingConcatenator(getOperation()).run(); }
};

} // namespace

static DecodeOp decodeOf(WeightedMatmul product) {
  return product.getWeight().getDefiningOp<DecodeOp>();
}

/// Returns the type of `types` concatenated along dimension `dim`.
static RankedTensorType joinedType(TypeRange types, unsigned dim) {
  auto first = cast<RankedTensorType>(types.front());
  SmallVector<int64_t> shape(first.getShape());
  shape[dim] = 0;
  for (Type type : types)
    shape[dim] += cast<RankedTensorType>(type).getDimSize(dim);
  return first.clone(shape);
}

/// Returns whether the decodes are in no concatenation, or in exactly this one.
bool SiblingConcatenator::canStack(ArrayRef<DecodeOp> decodes) const {
  ConcatOp known = stacks.lookup(decodes.front());
  if (!known)
    return llvm::none_of(decodes,
                         [&](DecodeOp op) { return stacks.contains(op); });
  return llvm::equal(known.getParts(), decodes, [](Value part, DecodeOp op) {
    return part == op->getResult(0);
  });
}

/// Stacks the decoded weights by rows, before `user`.
Value SiblingConcatenator::stack(ArrayRef<DecodeOp> decodes, Operation *user) {
  if (ConcatOp known = stacks.lookup(decodes.front()))
    return known.getWhole();
  SmallVector<Value> parts;
  for (DecodeOp decode : decodes) {
    moveAhead(decode, user);
    parts.push_back(decode.getResult());
  }
  OpBuilder builder(user);
  auto whole = ConcatOp::create(builder, user->getLoc(),
                                joinedType(ValueRange(parts).getTypes(), 0),
                                parts, builder.getUnitAttr());
  copyStage(user, whole);
  for (DecodeOp decode : decodes)
    stacks[decode] = whole;
  return whole.getWhole();
}

//===----------------------------------------------------------------------===//
// Forward
//===----------------------------------------------------------------------===//

static bool areOneKind(WeightedMatmul a, WeightedMatmul b) {
  return a->getName() == b->getName() && a.getScale() == b.getScale() &&
         a.getLayout() == b.getLayout();
}

/// Returns whether x or y has a single column, which cannot become a range of a
/// wider row.
static bool isScalar(WeightedMatmul product) {
  return llvm::is_contained(product.getWeightType().getShape(), 1);
}

static bool canJoin(WeightedMatmul a, WeightedMatmul b) {
  return !isScalar(a) && !isScalar(b) && layerOf(a) == layerOf(b) &&
         areOneKind(a, b) && isBackward(a) == isBackward(b) &&
         a.getWeightType().getElementType() ==
             b.getWeightType().getElementType() &&
         decodeOf(a) != decodeOf(b) &&
         (isBackward(a) || StepMemory::waitsForBackward(a.getProduct()) ==
                               StepMemory::waitsForBackward(b.getProduct()));
}

/// Replaces the siblings by one matmul and a split.
void SiblingConcatenator::joinProducts(ArrayRef<WeightedMatmul> siblings) {
  WeightedMatmul first = siblings.front();
  SmallVector<DecodeOp> decodes = llvm::map_to_vector(siblings, decodeOf);
  if (!canStack(decodes))
    return;
  SmallVector<Type> types;
  for (WeightedMatmul sibling : siblings)
    types.push_back(sibling.getProduct().getType());
  Value weight = stack(decodes, first);
  OpBuilder builder(first);
  unsigned columns = tensorOf(first.getProduct()).getRank() - 1;
  WeightedMatmul whole =
      first.cloneWith(builder, weight, joinedType(types, columns));
  auto split =
      SplitOp::create(builder, first.getLoc(), types, whole.getProduct());
  copyStage(first, split);
  for (auto [op, part] : llvm::zip_equal(siblings, split.getParts())) {
    WeightedMatmul sibling = op;
    sibling.getProduct().replaceAllUsesWith(part);
    sibling->erase();
  }
}

//===----------------------------------------------------------------------===//
// Backward
//===----------------------------------------------------------------------===//

/// Returns the members of a sum that can be joined. If their weights are
/// already stacked, the members are in the order of the stack.
SmallVector<WeightedMatmul>
SiblingConcatenator::chooseMembers(ArrayRef<WeightedMatmul> chain) {
  SmallVector<WeightedMatmul> loose;
  llvm::MapVector<Operation *, SmallVector<WeightedMatmul>> stacked;
  DenseSet<Value> seen;
  for (WeightedMatmul op : chain) {
    DecodeOp decode = decodeOf(op);
    if (!decode || op.getInDimension() != 0 ||
        !StepMemory::canBecomePart(op.getX()) ||
        !seen.insert(op.getX()).second ||
        !seen.insert(decode.getResult()).second ||
        !areOneKind(op, chain.front()))
      continue;
    if (ConcatOp known = stacks.lookup(decode))
      stacked[known].push_back(op);
    else
      loose.push_back(op);
  }
  for (auto &[concat, members] : stacked) {
    OperandRange parts = cast<ConcatOp>(concat).getParts();
    if (members.size() != parts.size())
      continue;
    llvm::sort(members, [&](WeightedMatmul a, WeightedMatmul b) {
      return llvm::find(parts, a.getWeight()) <
             llvm::find(parts, b.getWeight());
    });
    return members;
  }
  return loose;
}

/// Returns the matmul that computes `value` if it can accumulate; else null.
static WeightedMatmul summandOf(Value value) {
  auto product =
      value ? value.getDefiningOp<WeightedMatmul>() : WeightedMatmul();
  return product && product.getProduct() == value &&
                 isa<AccumulatingOp>(product.getOperation())
             ? product
             : WeightedMatmul();
}

static void addTo(WeightedMatmul product, Value sum) {
  cast<AccumulatingOp>(product.getOperation()).setAccumulator(sum);
}

/// Rewrites the sum that ends in `last`: first one GEMM per weight that is not
/// joined, then one GEMM for all joined weights.
void SiblingConcatenator::joinSum(WeightedMatmul last) {
  SmallVector<WeightedMatmul> chain = {last};
  while (true) {
    Value init = chain.back().getInit();
    WeightedMatmul before = summandOf(init);
    if (!before || !init.hasOneUse() || layerOf(before) != layerOf(last))
      break;
    chain.push_back(before);
  }
  std::reverse(chain.begin(), chain.end());
  SmallVector<WeightedMatmul> members = chooseMembers(chain);
  if (members.size() < 2)
    return;
  OpBuilder builder(last->getBlock(), std::next(last->getIterator()));
  SmallVector<Value> dys;
  for (WeightedMatmul member : members)
    dys.push_back(member.getX());
  Value sum = chain.front().getInit();
  for (WeightedMatmul op : chain) {
    if (llvm::is_contained(members, op))
      continue;
    addTo(op, sum);
    sum = op.getProduct();
  }
  RankedTensorType type = tensorOf(last.getProduct());
  auto dy = ConcatOp::create(
      builder, last.getLoc(),
      joinedType(ValueRange(dys).getTypes(), type.getRank() - 1), dys,
      /*rows=*/UnitAttr());
  copyStage(last, dy);
  Value weight = stack(llvm::map_to_vector(members, decodeOf), dy);
  addTo(members.front(), Value());
  WeightedMatmul joined = members.front().cloneWith(builder, weight, type);
  joined->setLoc(last.getLoc());
  joined.getXMutable().set(dy);
  addTo(joined, sum);
  last.getProduct().replaceAllUsesExcept(joined.getProduct(), joined);
  for (WeightedMatmul member : llvm::reverse(chain))
    if (llvm::is_contained(members, member))
      member->erase();
}

/// Returns whether the result's only reader is a matmul that accumulates into
/// it.
static bool isContinued(WeightedMatmul product) {
  Value y = product.getProduct();
  if (!y.hasOneUse())
    return false;
  auto next = dyn_cast<WeightedMatmul>(*y.user_begin());
  return next && next.getInit() == y;
}

void SiblingConcatenator::run() {
  llvm::MapVector<Value, SmallVector<SmallVector<WeightedMatmul>>> byInput;
  SmallVector<WeightedMatmul> sums;
  for (Operation &op : step.getBody().front()) {
    auto product = dyn_cast<WeightedMatmul>(op);
    if (!product || !product.getProduct() || product.getGroups() > 1)
      continue;
    if (product.getInDimension() == 0) {
      if (summandOf(product.getProduct()) && !isContinued(product))
        sums.push_back(product);
      continue;
    }
    if (product.getInit() || !decodeOf(product))
      continue;
    auto &groups = byInput[product.getX()];
    auto *group = llvm::find_if(groups, [&](auto &group) {
      return llvm::all_of(group, [&](WeightedMatmul member) {
        return canJoin(member, product);
      });
    });
    if (group == groups.end())
      groups.push_back({product});
    else
      group->push_back(product);
  }
  for (auto &[x, groups] : byInput)
    for (auto &group : groups)
      if (group.size() > 1)
        joinProducts(group);
  for (WeightedMatmul sum : sums)
    joinSum(sum);
}
