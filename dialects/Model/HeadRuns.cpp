// SPDX-License-Identifier: MIT

// Attention sharded by heads. A run is a set of query heads together with the
// key head that they attend to.

#include "dialects/Model/Model.h"

#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <set>
#include <string>

using namespace mlir;
using namespace qlora::model;

namespace {

/// Groups query heads into runs of equal size, with the same number of runs on
/// each rank. If heads do not divide evenly, runs repeat their last head, and
/// whole runs are repeated. The copies' results are unused and get no gradient.
struct HeadRuns {
  int64_t heads, keyHeads; ///< of the op
  int64_t queries, runs; ///< query heads per run; used runs
  int64_t count;         ///< all runs, a multiple of the ranks

  int64_t group() const { return heads / keyHeads; }
  int64_t runsOfKey() const { return llvm::divideCeil(group(), queries); }
  int64_t keyOf(int64_t run) const {
    return std::min(run, runs - 1) / runsOfKey();
  }
  int64_t firstOf(int64_t run) const {
    return keyOf(run) * group() +
           std::min(run, runs - 1) % runsOfKey() * queries;
  }
  int64_t endOf(int64_t run) const {
    return std::min(firstOf(run) + queries, (keyOf(run) + 1) * group());
  }
};

} // namespace

/// Chooses the grouping with the fewest query heads in total. If there are
/// several, chooses the largest runs: they need the fewest key head copies.
static HeadRuns assignHeads(int64_t heads, int64_t keyHeads, int64_t ranks) {
  HeadRuns best = {};
  for (int64_t queries = heads / keyHeads; queries > 0; --queries) {
    HeadRuns next = {heads, keyHeads, queries, 0, 0};
    next.runs = keyHeads * next.runsOfKey();
    next.count = llvm::alignTo(next.runs, ranks);
    if (best.count == 0 || next.count * queries < best.count * best.queries)
      best = next;
  }
  return best;
}

/// Returns the given heads of x [..., heads * dim], concatenated. Splits x only
/// where the heads are not consecutive.
static Value pickHeads(OpBuilder &b, Location loc, Value x, int64_t dim,
                       ArrayRef<int64_t> heads) {
  std::set<int64_t> cuts = {0, heads.back() + 1, columnsOf(x) / dim};
  int64_t next = 0;
  for (int64_t head : heads) {
    if (head != next)
      cuts.insert({head, next});
    next = head + 1;
  }
  SmallVector<Type> types;
  DenseMap<int64_t, unsigned> pieceAt;
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
    pieceAt[*cut] = types.size();
    types.push_back(withColumns(x, (*std::next(cut) - *cut) * dim));
  }
  auto split = SplitOp::create(b, loc, types, x);
  SmallVector<Value> picked;
  for (int64_t head : heads)
    if (auto piece = pieceAt.find(head); piece != pieceAt.end())
      picked.push_back(split.getParts()[piece->second]);
  if (picked.size() == 1)
    return picked.front();
  return ConcatOp::create(b, loc, withColumns(x, heads.size() * dim), picked);
}

/// Sets the log-sum-exp's type [B, heads, T] according to the op's `heads`.
static void followHeads(AttentionOp op) {
  op.getLse().setType(withLength(tensorOf(op.getLse()), 1, op.getHeads()));
}

SmallVector<OpOperand *> AttentionOp::getColumnOperands() {
  SmallVector<OpOperand *> operands = {&getQMutable(), &getKMutable(),
                                       &getVMutable()};
  if (getSinks())
    operands.push_back(&getSinksMutable()[0]);
  return operands;
}

/// A run is a key head with the query heads that attend to it.
int64_t AttentionOp::getColumnRuns() { return getKvHeads(); }

std::string AttentionOp::describeRuns() {
  return std::to_string(getHeads()) + " query heads and " +
         std::to_string(getKvHeads()) + " key-value heads" +
         (getSinks() ? " with sinks" : "");
}

/// Fails if heads must be repeated and there are sinks: ranks use distinct
/// ranges of a weight, so no element of the sinks can be repeated.
bool AttentionOp::assignRuns(OpBuilder &b, int64_t ranks) {
  const HeadRuns dealt = assignHeads(getHeads(), getKvHeads(), ranks);
  const int64_t heads = dealt.count * dealt.queries;
  if (heads != static_cast<int64_t>(getHeads()) && getSinks())
    return false;
  SmallVector<int64_t> queries, keys, read;
  for (int64_t run = 0; run < dealt.count; ++run) {
    keys.push_back(dealt.keyOf(run));
    for (int64_t index = 0; index < dealt.queries; ++index) {
      const int64_t head = dealt.firstOf(run) + index;
      if (run < dealt.runs && head < dealt.endOf(run))
        read.push_back(queries.size());
      queries.push_back(std::min(head, dealt.endOf(run) - 1));
    }
  }
  const int64_t dim = getHeadDim();
  for (OpOperand *operand : {&getKMutable(), &getVMutable()})
    operand->set(pickHeads(b, getLoc(), operand->get(), dim, keys));
  setKvHeads(dealt.count);
  if (heads == static_cast<int64_t>(getHeads()))
    return true;
  getQMutable().assign(pickHeads(b, getLoc(), getQ(), dim, queries));
  getResult().setType(tensorOf(getQ()));
  setHeads(heads);
  followHeads(*this);
  SmallVector<OpOperand *> uses(
      llvm::make_pointer_range(getResult().getUses()));
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointAfter(*this);
  Value own = pickHeads(b, getLoc(), getResult(), dim, read);
  for (OpOperand *use : uses)
    use->set(own);
  return true;
}

void AttentionOp::shardColumns(int64_t ranks) {
  setHeads(getHeads() / ranks);
  setKvHeads(getKvHeads() / ranks);
  followHeads(*this);
}
