// SPDX-License-Identifier: MIT

// shard-sequence: shards the tokens over ranks between tensor-parallel matmuls.
//
//   %p = model.linear %a, %wo : [B, T, C]             // a partial sum
//   %y = model.all_sum %p
//   %z = model.add %h, %y
//   %x = model.rms_norm %z, %w
//   %u = model.linear %x, %wu                         // a tp shard
//
// becomes, for two ranks,
//
//   %p = model.linear %a, %wo
//   %y = model.reduce_scatter %p : [1, B T / 2, C]    // for own tokens
//   %z = model.add %h, %y
//   %n = model.rms_norm %z, %w
//   %x = model.all_gather %n : [B, T, C]
//   %u = model.linear %x, %wu
//
// This is sequence parallelism (Korthikanti et al., 2022). It sends as much as
// the all-reduce. Each of N ranks computes one N-th of the rows between two
// matmuls and saves one N-th for the backward, which can gather values again.
//
// A shard is a run of consecutive tokens, of one sequence or several, so only
// ops that work on each token separately can run on it. Dropout stays
// unsharded, because its masks are numbered by token. If all ranks have a value
// from the start, such as embeddings, each takes its own tokens. Values that
// unsharded modules compute from gathered tokens stay whole, and so do results
// computed from them: sharding and gathering these would send more bytes.

#include "compiler/Partition/Reshard.h"
#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"
#include "dialects/Program/Program.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_SHARDSEQUENCE
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

class ShardSequencePass
    : public qlora::impl::ShardSequenceBase<ShardSequencePass> {
  void runOnOperation() override;
};

/// Shards one forward function.
class TokenSharding {
public:
  TokenSharding(func::FuncOp function, int64_t ranks)
      : function(function), ranks(ranks),
        tokens(tensorOf(function.getArgument(0)).getShape()) {}

  LogicalResult run();
  int64_t scatteredSums() const { return sums; }
  int64_t gathers() const { return shared.count(); }

private:
  void scatter(AllSumOp sum);
  void shareTokens(Operation *op);
  void shardOp(Operation *op);
  bool canShare(Operation *op) const;
  bool isOfRows(Value value) const;
  RankedTensorType ownType(Value whole) const;
  RankedTensorType wholeType(Value own) const;

  func::FuncOp function;
  const int64_t ranks;
  const ArrayRef<int64_t> tokens; ///< [B, T] of a micro-batch
  /// Values that have only this rank's tokens.
  Resharding shared{Ranks::TP, Held::Rows, Held::Whole,
                    [this](Value own) { return wholeType(own); },
                    Resharding::BeforeReader};
  /// Whole values -> this rank's tokens of each.
  Resharding replicated{Ranks::TP, Held::Whole, Held::Rows,
                        [this](Value whole) { return ownType(whole); },
                        Resharding::BeforeReader};
  DenseSet<Value> gathered; ///< gathered values, and all made from them
  int64_t sums = 0;         ///< number of scattered sums
};

} // namespace

bool TokenSharding::isOfRows(Value value) const {
  return tensorOf(value).getRank() > 2 && isOfTokens(value, tokens);
}

RankedTensorType TokenSharding::ownType(Value whole) const {
  SmallVector<int64_t> shape(tensorOf(whole).getShape());
  shape[1] = shape[0] * shape[1] / ranks;
  shape[0] = 1;
  return tensorOf(whole).clone(shape);
}

RankedTensorType TokenSharding::wholeType(Value own) const {
  return withLength(withRows(own, tokens[0]), 1, tokens[1]);
}

/// Returns whether an op works on each token separately, and this rank has, or
/// can extract, its own tokens of every operand.
bool TokenSharding::canShare(Operation *op) const {
  return isa<RowOp>(op) && !op->hasTrait<TrainingOnly>() &&
         llvm::all_of(op->getOperands(), [&](Value operand) {
           return shared.contains(operand) ||
                  operand.getDefiningOp<WeightOp>() ||
                  (isOfRows(operand) && !gathered.contains(operand));
         }) &&
         llvm::all_of(op->getResults(),
                      [&](Value result) { return isOfRows(result); });
}

/// Replaces an all-reduce by a reduce-scatter if a reader can work on a shard.
void TokenSharding::scatter(AllSumOp sum) {
  gathered.erase(sum.getResult()); // a reduce-scatter can shard it
  const bool isWorthIt =
      sum.getRanks() == Ranks::TP && isOfRows(sum.getResult()) &&
      llvm::any_of(sum->getUsers(),
                   [&](Operation *user) { return canShare(user); });
  if (!isWorthIt)
    return;
  OpBuilder b(sum);
  Value part = reshard(b, sum.getLoc(), sum.getX(), Held::Partial, Held::Rows,
                       ownType(sum.getResult()), Ranks::TP);
  copyStage(sum, part.getDefiningOp());
  shared.insert(part);
  sum.getResult().replaceAllUsesWith(part);
  sum.erase();
  ++sums;
}

void TokenSharding::shareTokens(Operation *op) {
  for (OpOperand &operand : op->getOpOperands())
    if (isOfRows(operand.get()) && !shared.contains(operand.get()))
      operand.set(replicated.of(operand.get(), op));
  for (Value result : op->getResults())
    result.setType(ownType(result));
  shared.insert(op->getResults());
}

void TokenSharding::shardOp(Operation *op) {
  const auto isShared = [&](Value value) { return shared.contains(value); };
  if (llvm::any_of(op->getOperands(), isShared) && canShare(op))
    return shareTokens(op);
  for (OpOperand &operand : op->getOpOperands())
    if (isShared(operand.get())) {
      operand.set(shared.of(operand.get(), op));
      gathered.insert(operand.get());
    }
  if (llvm::any_of(op->getOperands(),
                   [&](Value value) { return gathered.contains(value); }))
    gathered.insert_range(op->getResults());
}

LogicalResult TokenSharding::run() {
  if (tokens[0] * tokens[1] % ranks)
    return function.emitError("--sequence-parallel: a micro-batch has ")
           << tokens[0] << " x " << tokens[1] << " tokens, not divisible by "
           << ranks
           << " ranks; change --per-device-train-batch-size or --max-length, "
              "or remove the option";
  for (Operation &op : llvm::make_early_inc_range(function.front())) {
    shardOp(&op);
    if (auto sum = dyn_cast<AllSumOp>(op))
      scatter(sum);
  }
  return success();
}

void ShardSequencePass::runOnOperation() {
  const int64_t ranks = model::meshOf(getOperation()).tp;
  if (ranks == 1)
    return;
  int64_t sums = 0, gathers = 0;
  for (auto function : getOperation().getOps<func::FuncOp>()) {
    TokenSharding sharing(function, ranks);
    if (failed(sharing.run()))
      return signalPassFailure();
    sums = std::max(sums, sharing.scatteredSums());
    gathers = std::max(gathers, sharing.gathers());
  }
  recordDecision(getOperation(), getArgument(),
                 MetadataBuilder(&getContext())
                     .add("ranks", ranks)
                     .add("scattered", sums)
                     .add("gathers", gathers)
                     .get());
}
