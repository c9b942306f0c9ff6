// SPDX-License-Identifier: MIT

// shard-context: each rank has a part of the tokens of every line.
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
//     %q3 = model.swap_blocks %q2    // line by line: [2, 64, 64]
//     %s  = ... model.all_gather %segments : [2, 64]
//     %a3 = model.attention %q3, ..., %s {heads = 2} : [2, 64, 64]
//     ... and back : [2, 32, 128]
//
// That is context parallelism with heads exchanged for tokens (Jacobs et al.,
// 2023: DeepSpeed-Ulysses). Other ops do for a token what they do for it alone,
// or add over tokens. Sums that the runtime reads are summands then, as those of
// ranks with other rows are; those that something is made of are added up first,
// by `model.all_sum`, and what it makes is the same on all ranks. A loss is, so
// that all count it, and what it is of, as often as there are ranks: gradients,
// too, since that of an all_sum is one. Where the first loss is a summand, others
// are divided among the ranks. So nothing behind the gradients knows of this
// pass.

#include "compiler/Decisions.h"
#include "compiler/Graph/LineExchange.h"
#include "compiler/Graph/RankParts.h"
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

/// One forward function.
class LineSharing {
public:
  LineSharing(func::FuncOp function, int64_t ranks)
      : function(function),
        exchange{
            ranks,
            function->getAttrOfType<IntegerAttr>("model.batch").getInt(),
            function->getAttrOfType<IntegerAttr>("model.length").getInt()} {}

  LogicalResult run();
  /// What one rank sends in the forward.
  int64_t exchangedBytes() const { return bytes; }

private:
  LogicalResult shareOp(Operation *op);
  LogicalResult divideLosses();
  bool dealRuns(ColumnwiseOp op);
  LogicalResult exchangeAround(ColumnwiseOp op);
  LogicalResult exchangeOperand(ColumnwiseOp op, OpOperand &operand);
  void share(Value value);
  bool isOfLines(Value value) const;

  func::FuncOp function;
  const LineExchange exchange;
  DenseSet<Value> shared;   ///< of this rank's tokens
  Summands summands{Ranks::CP}; ///< over this rank's tokens
  DenseMap<Value, Value> wholeLines; ///< of those of this rank's tokens
  int64_t bytes = 0;
};
} // namespace

/// Looks at several tokens, but at each column, or head, by itself.
static bool looksAtOtherTokens(Operation *op) {
  return isa<ColumnwiseOp>(op) && !isa<RowOp>(op);
}

/// Does for each token what it does for it alone, or adds over tokens.
static bool looksAtTokens(Operation *op) {
  return isa<RowOp, WeightedProduct>(op) || isView(op) ||
         op->hasTrait<TokenByToken>() || op->hasTrait<AddsTokens>();
}

/// [B, T] or [B, T, ...].
bool LineSharing::isOfLines(Value value) const {
  ArrayRef<int64_t> shape = tensorOf(value).getShape();
  return shape.size() > 1 && shape[0] == exchange.lines &&
         shape[1] == exchange.length;
}

void LineSharing::share(Value value) {
  if (!isOfLines(value))
    return;
  SmallVector<int64_t> shape(tensorOf(value).getShape());
  shape[1] = exchange.ownLength();
  value.setType(tensorOf(value).clone(shape));
  shared.insert(value);
}

//===----------------------------------------------------------------------===//
// Around an op that looks at other tokens
//===----------------------------------------------------------------------===//

/// Of a weight by column, that of this rank's columns.
static PartAttr ownColumns(WeightOp weight, int64_t ranks) {
  RankedTensorType type = tensorOf(weight);
  const int64_t dimension = type.getRank() - 1;
  const int64_t size = type.getDimSize(dimension);
  return PartAttr::get(weight.getContext(), ranks, dimension, 0, size, size,
                       Ranks::CP);
}

LogicalResult LineSharing::exchangeOperand(ColumnwiseOp op,
                                           OpOperand &operand) {
  StageCopier stage(op);
  OpBuilder builder(op);
  builder.setListener(&stage);
  Value own = operand.get();
  const bool isByColumn =
      llvm::is_contained(op.getColumnOperands(), &operand);
  auto weight = own.getDefiningOp<WeightOp>();
  if (!shared.contains(own) && !(weight && isByColumn))
    return op->emitOpError("has an operand that is neither of tokens nor a "
                           "weight by column, which ranks cannot have parts of");
  if (weight && weight.getPart())
    return op->emitOpError("uses a part of a weight that is trained: ranks that "
                           "share lines cannot have parts of it; train without "
                           "--parallel cp, or without tp");
  if (!shared.contains(own)) {
    operand.set(usePart(builder, weight, ownColumns(weight, exchange.ranks)));
  } else if (isByColumn) {
    bytes += tensorBytes(tensorOf(own));
    operand.set(exchange.toAllTokens(builder, op.getLoc(), own));
  } else {
    Value &whole = wholeLines[own];
    builder.setInsertionPointAfterValue(own);
    if (!whole)
      whole = exchange.wholeLines(builder, op.getLoc(), own);
    operand.set(whole);
  }
  return success();
}

/// Where ranks do not divide the runs of columns.
bool LineSharing::dealRuns(ColumnwiseOp op) {
  StageCopier stage(op);
  OpBuilder builder(op);
  builder.setListener(&stage);
  if (!op.dealRuns(builder, exchange.ranks))
    return false;
  for (Operation *each : stage.made)
    shared.insert_range(each->getResults());
  return true;
}

LogicalResult LineSharing::exchangeAround(ColumnwiseOp op) {
  if (op.getColumnRuns() % exchange.ranks && !dealRuns(op))
    return op->emitOpError("has ")
           << op.getRunsInWords() << ", which " << exchange.ranks
           << " ranks cannot share equally; --parallel cp takes a number that "
              "divides them";
  for (OpResult other : llvm::drop_begin(op->getResults()))
    if (!other.use_empty())
      return op->emitOpError("has a second result that is read: ranks have a "
                             "part of it only");
  for (OpOperand &operand : op->getOpOperands())
    if (failed(exchangeOperand(op, operand)))
      return failure();
  op.divideColumns(exchange.ranks);
  Value result = op->getResult(0);
  result.setType(
      tensorOf(result).clone({exchange.lines, exchange.length,
                              columnsOf(result) / exchange.ranks}));
  bytes += tensorBytes(tensorOf(result));
  StageCopier stage(op);
  OpBuilder builder(op);
  builder.setListener(&stage);
  builder.setInsertionPointAfter(op);
  Value own = exchange.toOwnTokens(builder, op.getLoc(), result);
  result.replaceAllUsesExcept(own, stage.made.front());
  shared.insert(own);
  return success();
}

//===----------------------------------------------------------------------===//
// The function
//===----------------------------------------------------------------------===//

/// None that has no rule here, or takes columns out of all rows as one of them
/// says.
static LogicalResult checkTokens(Operation *op) {
  if (!looksAtTokens(op))
    return op->emitOpError("does not say what it does with tokens, of which "
                           "ranks have parts; train without --parallel cp");
  auto product = dyn_cast<WeightedProduct>(op);
  if (!product || product.getInt8Threshold().value_or(0) == 0)
    return success();
  return op->emitOpError("leaves columns unrounded by all rows of a micro-batch, "
                         "of which ranks have parts; train without "
                         "--parallel cp, or with --llm-int8-threshold 0");
}

LogicalResult LineSharing::shareOp(Operation *op) {
  // What is made of sums over tokens is made of those over all.
  summands.sumOperands(op);
  if (looksAtOtherTokens(op))
    return exchangeAround(cast<ColumnwiseOp>(op));
  if (llvm::none_of(op->getOperands(),
                    [&](Value value) { return shared.contains(value); }))
    return success();
  if (failed(checkTokens(op)))
    return failure();
  for (Value result : op->getResults()) {
    if (isOfLines(result))
      share(result);
    else if (op->hasTrait<AddsTokens>())
      summands.insert(result);
  }
  return success();
}

/// Beside a summand those that each rank finds whole.
LogicalResult LineSharing::divideLosses() {
  Operation *end = function.front().getTerminator();
  if (end->getNumOperands() == 0 || !summands.contains(end->getOperand(0)))
    return success();
  DenseSet<Operation *> divided;
  for (Value result : end->getOperands()) {
    auto loss = result.getDefiningOp<LossOp>();
    if (!loss || shared.contains(result) || summands.contains(result) ||
        !divided.insert(loss).second)
      continue;
    if (!loss.divideLoss(exchange.ranks))
      return loss.emitOpError("cannot be divided among ranks that share lines; "
                              "train without it, or without --parallel cp");
  }
  return success();
}

LogicalResult LineSharing::run() {
  if (exchange.length % exchange.ranks)
    return function.emitError("a line has ")
           << exchange.length << " tokens, which " << exchange.ranks
           << " ranks cannot share equally; give a --max-length that is a "
              "multiple of it";
  for (BlockArgument argument : function.getArguments())
    share(argument);
  for (Operation &op : llvm::make_early_inc_range(
           function.front().without_terminator()))
    if (failed(shareOp(&op)))
      return failure();
  function.setFunctionType(FunctionType::get(
      function.getContext(), function.front().getArgumentTypes(),
      function.front().getTerminator()->getOperandTypes()));
  return divideLosses();
}

void ShardContextPass::runOnOperation() {
  if (ranks < 1) {
    getOperation().emitError("expects at least one rank that shares lines, but "
                             "got ")
        << int64_t(ranks);
    return signalPassFailure();
  }
  if (ranks == 1)
    return;
  int64_t bytes = 0;
  for (auto function : getOperation().getOps<func::FuncOp>()) {
    LineSharing sharing(function, ranks);
    if (failed(sharing.run()))
      return signalPassFailure();
    bytes = std::max(bytes, sharing.exchangedBytes());
  }
  getOperation()->setAttr(program::kContextRanksAttr,
                          Builder(&getContext()).getI64IntegerAttr(ranks));
  recordDecision(getOperation(), getArgument(),
                 Facts(&getContext())
                     .add("ranks", int64_t(ranks))
                     .add("exchanged_bytes", bytes)
                     .get());
}
