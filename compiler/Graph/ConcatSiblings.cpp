// SPDX-License-Identifier: MIT

// concat-siblings: frozen linears over the same x become one, and so do the
// sums of their input gradients.
//
//   %nq = train.decode %wq                    %nk = train.decode %wk
//   %q = model.linear %x, %nq                 %k = model.linear %x, %nk
//   %0 = train.linear_input_grad %dq, %nq
//   %1 = train.linear_input_grad %dk, %nk init %0
//
// becomes
//
//   %n = model.concat %nq, %nk {rows}         // decoded into one scratch
//   %y = model.linear %x, %n
//   %q, %k = model.split %y                   // column ranges of its rows
//   %dy = model.concat %dq, %dk
//   %1 = train.linear_input_grad %dy, %n
//
// One GEMM reads x once, and one writes dx once instead of adding to it for
// each weight. All is views: who makes a dy writes it into place, who reads q
// strides over k. So it is done where nobody has to copy:
// - a dy is the fresh result of a row or library op, and in one group only;
// - results of one linear live alike: kept for the backward, all or none (a
//   range that is kept keeps the whole);
// - a decoded weight is a range of one concatenation only. The forward chooses;
//   a backward that shares its decodes takes the same ones together.
//
// After plan-dequant, which decides what is decoded into scratch, and after
// the gradient, whose sums are chains of `init`s by then.

#include "compiler/Graph/OpCost.h"
#include "compiler/Graph/StepMemory.h"
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
  void joinLinears(ArrayRef<LinearOp> siblings);
  void joinInputGrads(LinearInputGradOp last);
  bool canStack(ArrayRef<DecodeOp> decodes) const;
  Value stack(ArrayRef<DecodeOp> decodes, Operation *user);
  SmallVector<LinearInputGradOp>
  chooseMembers(ArrayRef<LinearInputGradOp> chain);

  StepOp step;
  DenseMap<Operation *, ConcatOp> stacks; ///< of a decode
};

class ConcatSiblingsPass
    : public qlora::impl::ConcatSiblingsBase<ConcatSiblingsPass> {
  void runOnOperation() override {
    for (auto step : getOperation().getOps<StepOp>())
      SiblingConcatenator(step).run();
  }
};

} // namespace

template <typename Op> static DecodeOp decodeOf(Op op) {
  return op.getWeight().template getDefiningOp<DecodeOp>();
}

static RankedTensorType typeOf(Value value) {
  return cast<RankedTensorType>(value.getType());
}

/// `types` beside each other along dimension `dim`.
static RankedTensorType joinedType(TypeRange types, unsigned dim) {
  auto first = cast<RankedTensorType>(types.front());
  SmallVector<int64_t> shape(first.getShape());
  shape[dim] = 0;
  for (Type type : types)
    shape[dim] += cast<RankedTensorType>(type).getDimSize(dim);
  return first.clone(shape);
}

static void copyMarks(Operation *from, Operation *to) {
  for (StringRef mark : {StringRef(kBackwardAttr), StringRef(kBlockAttr)})
    if (Attribute value = from->getAttr(mark))
      to->setAttr(mark, value);
}

static void moveAhead(Operation *op, Operation *user) {
  if (op->isBeforeInBlock(user))
    return;
  op->moveBefore(user);
  for (Value operand : op->getOperands())
    if (Operation *maker = operand.getDefiningOp())
      moveAhead(maker, op);
}

/// Whether they are no part of a concatenation, or of this one.
bool SiblingConcatenator::canStack(ArrayRef<DecodeOp> decodes) const {
  ConcatOp known = stacks.lookup(decodes.front());
  if (!known)
    return llvm::none_of(decodes,
                         [&](DecodeOp op) { return stacks.contains(op); });
  return llvm::equal(known.getParts(), decodes, [](Value part, DecodeOp op) {
    return part == op->getResult(0);
  });
}

/// The decoded weights by rows, before `user`.
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
  copyMarks(user, whole);
  for (DecodeOp decode : decodes)
    stacks[decode] = whole;
  return whole.getWhole();
}

//===----------------------------------------------------------------------===//
// Forward
//===----------------------------------------------------------------------===//

static bool canJoin(LinearOp a, LinearOp b) {
  return blockOf(a) == blockOf(b) && a.getScale() == b.getScale() &&
         a->hasAttr(kBackwardAttr) == b->hasAttr(kBackwardAttr) &&
         typeOf(a.getWeight()).getElementType() ==
             typeOf(b.getWeight()).getElementType() &&
         decodeOf(a) != decodeOf(b) &&
         (a->hasAttr(kBackwardAttr) ||
          StepMemory::isReadInBackward(a.getResult()) ==
              StepMemory::isReadInBackward(b.getResult()));
}

/// One linear, split, in place of the siblings.
void SiblingConcatenator::joinLinears(ArrayRef<LinearOp> siblings) {
  LinearOp first = siblings.front();
  SmallVector<DecodeOp> decodes =
      llvm::map_to_vector(siblings, decodeOf<LinearOp>);
  if (!canStack(decodes))
    return;
  SmallVector<Type> types;
  for (LinearOp sibling : siblings)
    types.push_back(sibling.getResult().getType());
  Value weight = stack(decodes, first);
  OpBuilder builder(first);
  auto whole = LinearOp::create(
      builder, first.getLoc(), joinedType(types, typeOf(first).getRank() - 1),
      first.getX(), weight, Value(), first.getScaleAttr(),
      first.getModuleAttr());
  auto split = SplitOp::create(builder, first.getLoc(), types, whole);
  copyMarks(first, whole);
  copyMarks(first, split);
  for (auto [sibling, part] : llvm::zip_equal(siblings, split.getParts())) {
    LinearOp(sibling).getResult().replaceAllUsesWith(part);
    LinearOp(sibling)->erase();
  }
}

//===----------------------------------------------------------------------===//
// Backward
//===----------------------------------------------------------------------===//

/// Those of a sum that can be one, in the order of their weights' stack if
/// they have one.
SmallVector<LinearInputGradOp>
SiblingConcatenator::chooseMembers(ArrayRef<LinearInputGradOp> chain) {
  SmallVector<LinearInputGradOp> loose;
  llvm::MapVector<Operation *, SmallVector<LinearInputGradOp>> stacked;
  DenseSet<Value> seen;
  APFloat scale = LinearInputGradOp(chain.front()).getScale();
  for (LinearInputGradOp op : chain) {
    DecodeOp decode = decodeOf(op);
    if (!decode || !StepMemory::canBecomePart(op.getDy()) ||
        !seen.insert(op.getDy()).second ||
        !seen.insert(decode.getResult()).second || op.getScale() != scale)
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
    llvm::sort(members, [&](LinearInputGradOp a, LinearInputGradOp b) {
      return llvm::find(parts, a.getWeight()) <
             llvm::find(parts, b.getWeight());
    });
    return members;
  }
  return loose;
}

/// The sum that `last` ends: of its members first one GEMM per weight that is
/// not joined, then one for all that are.
void SiblingConcatenator::joinInputGrads(LinearInputGradOp last) {
  SmallVector<LinearInputGradOp> chain = {last};
  while (true) {
    Value init = chain.back().getInit();
    auto before = init ? init.getDefiningOp<LinearInputGradOp>() : nullptr;
    if (!before || !init.hasOneUse() || blockOf(before) != blockOf(last))
      break;
    chain.push_back(before);
  }
  std::reverse(chain.begin(), chain.end());
  SmallVector<LinearInputGradOp> members = chooseMembers(chain);
  if (members.size() < 2)
    return;
  OpBuilder builder(last->getBlock(), std::next(last->getIterator()));
  SmallVector<Value> dys;
  for (LinearInputGradOp member : members)
    dys.push_back(member.getDy());
  Value sum = chain.front().getInit();
  for (LinearInputGradOp op : chain) {
    if (llvm::is_contained(members, op))
      continue;
    if (sum)
      op.setAccumulator(sum);
    else
      op.getInitMutable().clear();
    sum = op.getResult();
  }
  auto dy = ConcatOp::create(
      builder, last.getLoc(),
      joinedType(ValueRange(dys).getTypes(), typeOf(last).getRank() - 1), dys,
      /*rows=*/UnitAttr());
  copyMarks(last, dy);
  Value weight =
      stack(llvm::map_to_vector(members, decodeOf<LinearInputGradOp>), dy);
  auto joined = LinearInputGradOp::create(builder, last.getLoc(),
                                          last.getType(), dy, weight, sum,
                                          last.getScaleAttr());
  copyMarks(last, joined);
  last.getResult().replaceAllUsesExcept(joined.getResult(), joined);
  for (LinearInputGradOp member : llvm::reverse(chain))
    if (llvm::is_contained(members, member))
      member->erase();
}

void SiblingConcatenator::run() {
  llvm::MapVector<Value, SmallVector<SmallVector<LinearOp>>> byInput;
  SmallVector<LinearInputGradOp> sums;
  for (Operation &op : step.getBody().front()) {
    if (auto grad = dyn_cast<LinearInputGradOp>(op)) {
      auto next = grad->hasOneUse()
                      ? dyn_cast<LinearInputGradOp>(*grad->user_begin())
                      : LinearInputGradOp();
      if (!next || next.getInit() != grad.getResult())
        sums.push_back(grad);
    }
    auto linear = dyn_cast<LinearOp>(op);
    if (!linear || linear.getInit() || !decodeOf(linear))
      continue;
    auto &groups = byInput[linear.getX()];
    auto *group = llvm::find_if(groups, [&](ArrayRef<LinearOp> group) {
      return llvm::all_of(group, [&](LinearOp member) {
        return canJoin(member, linear);
      });
    });
    if (group == groups.end())
      groups.push_back({linear});
    else
      group->push_back(linear);
  }
  for (auto &[x, groups] : byInput)
    for (auto &group : groups)
      if (group.size() > 1)
        joinLinears(group);
  for (LinearInputGradOp sum : sums)
    joinInputGrads(sum);
}
