// SPDX-License-Identifier: MIT

// shard-context: each rank gets a cp shard of every sequence's tokens.
//
//   func.func @forward(%ids : [2, 64], ..., %segments : [2, 64])
//     %q = model.linear %x, %wq : [2, 64, 128]
//     %a = model.attention %q, ..., %segments {heads = 4} : [2, 64, 128]
//
// becomes, for two ranks,
//
//   func.func @forward(%ids : [2, 32], ..., %segments : [2, 32])
//     %q  = model.linear %x, %wq : [2, 32, 128]
//     %q1 = model.swap_blocks %q     // a block of columns for each rank
//     %q2 = model.all_to_all %q1     // these columns of each rank's tokens
//     %q3 = model.swap_blocks %q2    // by sequence: [2, 64, 64]
//     %s  = ... model.all_gather %segments : [2, 64]
//     %a3 = model.attention %q3, ..., %s {heads = 2} : [2, 64, 64]
//     ... and back : [2, 32, 128]
//
// This is context parallelism that exchanges heads for tokens (Jacobs et al.,
// 2023: DeepSpeed-Ulysses). Other ops work on each token separately, or sum
// over tokens. A sum over tokens is handled according to its readers:
//
//  - The runtime reads it: each rank has a partial sum, as in data parallelism.
//  - An op reads it: `model.all_sum` reduces it first. A loss computed from the
//    result is equal on all ranks. The runtime's all-reduces multiply this
//    loss, its count and its gradients by the number of ranks. This factor
//    cancels, because gradients are divided by the count.
//
// If the first loss is a partial sum, its count is not multiplied. Then other
// losses, which are equal on all ranks, are divided by the number of ranks.

#include "compiler/Partition/Reshard.h"
#include "compiler/Partition/WeightShards.h"
#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"
#include "dialects/Program/Program.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_SHARDCONTEXT
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class ShardContextPass
    : public qlora::impl::ShardContextBase<ShardContextPass> {
public:
  using ShardContextBase::ShardContextBase;

private:
  void runOnOperation() override;
};

/// Shards one forward function.
class SequenceSharding {
public:
  SequenceSharding(func::FuncOp function, int64_t ranks)
      : function(function), ranks(ranks),
        lines(function->getAttrOfType<IntegerAttr>("model.batch").getInt()),
        length(function->getAttrOfType<IntegerAttr>("model.length").getInt()) {}

  LogicalResult run();
  /// Returns the bytes that one rank sends in the forward.
  int64_t exchangedBytes() const { return bytes; }

private:
  LogicalResult shardOp(Operation *op);
  LogicalResult divideLosses();
  bool assignRuns(ColumnwiseOp op);
  LogicalResult exchangeAround(ColumnwiseOp op);
  LogicalResult exchangeOperand(ColumnwiseOp op, OpOperand &operand);
  void share(Value value);

  func::FuncOp function;
  const int64_t ranks, lines, length;
  /// Values of this rank's tokens only.
  Resharding shared{Ranks::CP, Held::Tokens, Held::Whole, [this](Value own) {
                      return withLength(tensorOf(own), 1, length);
                    }};
  /// Partial sums over this rank's tokens.
  Resharding summands{Ranks::CP, Held::Partial, Held::Whole};
  int64_t bytes = 0;
};
} // namespace

/// Returns whether the op mixes tokens, but works on runs of columns
/// separately, as attention does on heads.
static bool looksAtOtherTokens(Operation *op) {
  return isa<ColumnwiseOp>(op) && !isa<RowOp>(op);
}

void SequenceSharding::share(Value value) {
  if (!isOfTokens(value, {lines, length}))
    return;
  value.setType(withLength(tensorOf(value), 1, length / ranks));
  shared.insert(value);
}

//===----------------------------------------------------------------------===//
// Exchanges around an op that reads other tokens
//===----------------------------------------------------------------------===//

LogicalResult SequenceSharding::exchangeOperand(ColumnwiseOp op,
                                                OpOperand &operand) {
  StageCopier stage(op);
  OpBuilder builder(op, &stage);
  Value own = operand.get();
  const bool isByColumn = llvm::is_contained(op.getColumnOperands(), &operand);
  if (shared.contains(own) && !isByColumn) {
    operand.set(shared.of(own, op));
    return success();
  }
  const int64_t columns = columnsOf(own);
  if (shared.contains(own)) {
    bytes += tensorBytes(tensorOf(own));
    operand.set(reshard(builder, op.getLoc(), own, Held::Tokens, Held::Columns,
                        tensorOf(own).clone({lines, length, columns / ranks}),
                        Ranks::CP));
    return success();
  }
  auto weight = own.getDefiningOp<WeightOp>();
  if (!weight || !isByColumn)
    return op->emitOpError(
        "has an operand that --parallel cp cannot shard: expects tokens, or a "
        "weight that is read by column; train without cp");
  if (weight.getPart())
    return op->emitOpError(
        "reads a trainable weight that --parallel tp shards; cp cannot shard "
        "it too. Fix: do not train this module's weight, or remove cp");
  operand.set(usePart(builder, weight, Ranks::CP, ranks,
                      tensorOf(own).getRank() - 1, 0, columns));
  return success();
}

/// Makes the number of column runs (heads) divisible by the ranks, if it can.
bool SequenceSharding::assignRuns(ColumnwiseOp op) {
  StageCopier stage(op);
  OpBuilder builder(op, &stage);
  if (!op.assignRuns(builder, ranks))
    return false;
  for (Operation *each : stage.made)
    shared.insert(each->getResults());
  return true;
}

LogicalResult SequenceSharding::exchangeAround(ColumnwiseOp op) {
  if (op.getColumnRuns() % ranks && !assignRuns(op))
    return op->emitOpError("has ")
           << op.describeRuns()
           << ", not divisible by --parallel cp=" << ranks
           << "; use a number that divides them";
  for (OpResult other : llvm::drop_begin(op->getResults()))
    if (!other.use_empty())
      return op->emitOpError("has a second result that is used, which "
                             "--parallel cp does not support; train without "
                             "cp");
  for (OpOperand &operand : op->getOpOperands())
    if (failed(exchangeOperand(op, operand)))
      return failure();
  op.shardColumns(ranks);
  Value result = op->getResult(0);
  const RankedTensorType type =
      withLength(tensorOf(result), 1, length / ranks);
  result.setType(type.clone({lines, length, columnsOf(result) / ranks}));
  bytes += tensorBytes(tensorOf(result));
  StageCopier stage(op);
  OpBuilder builder(op, &stage);
  builder.setInsertionPointAfter(op);
  Value own = reshard(builder, op.getLoc(), result, Held::Columns, Held::Tokens,
                      type, Ranks::CP);
  result.replaceAllUsesExcept(own, stage.made.front());
  shared.insert(own);
  return success();
}

//===----------------------------------------------------------------------===//
// The function
//===----------------------------------------------------------------------===//

/// Checks that the op has a sharding rule, and that its LLM.int8 outlier
/// columns, if any, are not chosen from the values of all tokens.
static LogicalResult checkTokens(Operation *op) {
  if (!isTokenwise(op) && !op->hasTrait<TokenReductionOp>())
    return op->emitOpError("cannot be sharded by tokens; train without "
                           "--parallel cp");
  auto product = dyn_cast<WeightedMatmul>(op);
  if (!product || product.getInt8Threshold().value_or(0) == 0)
    return success();
  return op->emitOpError(
      "chooses LLM.int8 outlier columns from all tokens, but --parallel cp "
      "shards them; remove cp, or use --llm-int8-threshold 0");
}

LogicalResult SequenceSharding::shardOp(Operation *op) {
  // Results computed from sums over tokens need the sums over all tokens.
  summands.exchangeOperands(op);
  if (looksAtOtherTokens(op))
    return exchangeAround(cast<ColumnwiseOp>(op));
  if (llvm::none_of(op->getOperands(),
                    [&](Value value) { return shared.contains(value); }))
    return success();
  if (failed(checkTokens(op)))
    return failure();
  for (Value result : op->getResults()) {
    if (isOfTokens(result, {lines, length}))
      share(result);
    else if (op->hasTrait<TokenReductionOp>())
      summands.insert(result);
  }
  return success();
}

/// Divides losses that are not partial sums by the number of ranks, if the
/// first loss is a partial sum.
LogicalResult SequenceSharding::divideLosses() {
  Operation *end = function.front().getTerminator();
  if (end->getNumOperands() == 0 || !summands.contains(end->getOperand(0)))
    return success();
  DenseSet<Operation *> divided;
  for (Value result : end->getOperands()) {
    auto loss = result.getDefiningOp<LossOp>();
    if (!loss || shared.contains(result) || summands.contains(result) ||
        !divided.insert(loss).second)
      continue;
    if (!loss.shardLoss(ranks))
      return loss.emitOpError("does not support --parallel cp; train without "
                              "this loss, or without cp");
  }
  return success();
}

LogicalResult SequenceSharding::run() {
  if (length % ranks)
    return function.emitError("a sequence has ")
           << length << " tokens, not divisible by --parallel cp=" << ranks
           << "; use a --max-length that is a multiple of " << ranks;
  for (BlockArgument argument : function.getArguments())
    share(argument);
  for (Operation &op : llvm::make_early_inc_range(
           function.front().without_terminator()))
    if (failed(shardOp(&op)))
      return failure();
  function.setFunctionType(FunctionType::get(
      function.getContext(), function.front().getArgumentTypes(),
      function.front().getTerminator()->getOperandTypes()));
  return divideLosses();
}

void ShardContextPass::runOnOperation() {
  if (ranks < 1) {
    getOperation().emitError("expects at least one context-parallel rank, but "
                             "got ")
        << int64_t(ranks);
    return signalPassFailure();
  }
  if (ranks == 1)
    return;
  int64_t bytes = 0;
  for (auto function : getOperation().getOps<func::FuncOp>()) {
    SequenceSharding sharing(function, ranks);
    if (failed(sharing.run()))
      return signalPassFailure();
    bytes = std::max(bytes, sharing.exchangedBytes());
  }
  setAxis(getOperation(), &qlora_mesh::cp, ranks);
  recordDecision(getOperation(), getArgument(),
                 MetadataBuilder(&getContext())
                     .add("ranks", int64_t(ranks))
                     .add("exchanged_bytes", bytes)
                     .get());
}
