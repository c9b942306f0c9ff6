// SPDX-License-Identifier: MIT

// shard-matmuls: shards matmuls over ranks, by columns or rows of the weight.
//
//   %q = model.linear %x, %wq : [B, T, 64]            // wq [64, 64]
//   %a = model.attention %q, ... {heads = 4}
//   %y = model.linear %a, %wo
//   %z = model.add %h, %y
//
// becomes, for two ranks,
//
//   %q = model.linear %x, %wq : [B, T, 32]            // wq [32, 64], a shard
//   %a = model.attention %q, ... {heads = 2}
//   %p = model.linear %a, %wo                         // wo [64, 32]
//   %y = model.all_sum %p
//   %z = model.add %h, %y
//
// This is tensor parallelism (Shoeybi et al., 2019). Trainable weights are
// whole on every rank. A rank uses a range of each weight:
//
//   %b = model.weight @lora_B {part = #model.part<2, 0, 0, 64, 64>} : [32, 8]
//
// and adds to that range of the gradient. The all-reduce of data parallelism
// combines the ranges. So every rank trains what a single rank would, and
// passes after the gradient need no change. All ranks have the same rows, so
// all-reduces multiply both gradients and label counts by the number of ranks.

#include "compiler/Partition/Reshard.h"
#include "compiler/Partition/ShardableColumnGroups.h"
#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"
#include "dialects/Program/Program.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_SHARDMATMULS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class ShardMatmulsPass
    : public qlora::impl::ShardMatmulsBase<ShardMatmulsPass> {
public:
  using ShardMatmulsBase::ShardMatmulsBase;

private:
  void runOnOperation() override;
  void recordMetadata(const ShardableColumnGroups &sets, SlicedBytes bytes);
};

/// Shards one forward function.
class FunctionSharding {
public:
  FunctionSharding(func::FuncOp function, const ShardableColumnGroups &sets,
                   int64_t ranks)
      : function(function), sets(sets), ranks(ranks) {}

  void run();

private:
  void useParts(WeightOp weight, const ShardedWeight &how);
  void divideResults(Operation *op);
  void sumProduct(WeightedMatmul product);

  func::FuncOp function;
  const ShardableColumnGroups &sets;
  const int64_t ranks;
  Resharding parts{Ranks::TP, Held::Partial, Held::Whole};
};
} // namespace

//===----------------------------------------------------------------------===//
// Weights
//===----------------------------------------------------------------------===//

/// Replaces a trainable weight by this rank's range of each segment, joined.
void FunctionSharding::useParts(WeightOp weight, const ShardedWeight &how) {
  OpBuilder builder(weight);
  RankedTensorType type = tensorOf(weight);
  SmallVector<Value> used;
  int64_t first = 0;
  for (int64_t segment : how.segments) {
    used.push_back(usePart(builder, weight, Ranks::TP, ranks, how.dimension,
                           first, segment));
    first += segment;
  }
  Value all = used.front();
  if (used.size() > 1) {
    auto concat = ConcatOp::create(
        builder, weight.getLoc(),
        withLength(type, how.dimension, first / ranks), used,
        /*rows=*/how.dimension + 1 < unsigned(type.getRank()));
    copyStage(weight, concat);
    all = concat;
  }
  weight.replaceAllUsesWith(all);
  weight.erase();
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

/// Marks a matmul of partial sums as a partial sum, unless it rounds its input.
/// It can accumulate into another partial sum. An accumulator that is not
/// partial is added after the all-reduce.
void FunctionSharding::sumProduct(WeightedMatmul product) {
  OpOperand &x = product.getXMutable();
  Value y = product.getProduct(), init = product.getInit();
  if (sets.isSharded(y))
    return parts.exchangeOperands(product);
  const bool isOfParts =
      sets.isSharded(x.get()) ||
      (parts.contains(x.get()) && !product.getInt8Threshold());
  if (isOfParts && (!init || parts.contains(init))) {
    parts.insert(y);
    return;
  }
  if (!sets.isSharded(x.get()))
    return parts.exchangeOperands(product);
  cast<AccumulatingOp>(product.getOperation()).setAccumulator({});
  Value sum = parts.of(y, product);
  OpBuilder builder(product.getContext());
  builder.setInsertionPointAfterValue(sum);
  auto all = AddOp::create(builder, product.getLoc(), y.getType(), init, sum);
  copyStage(product, all);
  y.replaceAllUsesExcept(all, sum.getDefiningOp());
}

void FunctionSharding::divideResults(Operation *op) {
  if (auto columnwise = dyn_cast<ColumnwiseOp>(op);
      columnwise && sets.isSharded(op->getResult(0)))
    columnwise.shardColumns(ranks);
  for (Value result : op->getResults())
    if (sets.isSharded(result))
      result.setType(withColumns(result, columnsOf(result) / ranks));
}

void FunctionSharding::run() {
  for (Operation &each : llvm::make_early_inc_range(function.front())) {
    Operation *op = &each;
    if (auto weight = dyn_cast<WeightOp>(op)) {
      auto how = sets.weights().find(weight.getParameterAttr().getAttr());
      if (how != sets.weights().end() &&
          SymbolTable::lookupNearestSymbolFrom<ParameterOp>(
              weight, weight.getParameterAttr())
              .getTrainable())
        useParts(weight, how->second);
      continue;
    }
    divideResults(op);
    if (auto product = dyn_cast<WeightedMatmul>(op);
        product && product.getProduct())
      sumProduct(product);
    else if (op->hasTrait<ReductionTransparentOp>() &&
             parts.contains(op->getOperand(0))) {
      parts.exchangeOperands(op, /*first=*/1);
      parts.insert(op->getResults());
    } else {
      parts.exchangeOperands(op);
    }
  }
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

void ShardMatmulsPass::recordMetadata(const ShardableColumnGroups &sets,
                                      SlicedBytes bytes) {
  SmallVector<Attribute> kept;
  Builder builder(&getContext());
  for (const std::string &why : sets.reasons())
    kept.push_back(builder.getStringAttr(why));
  recordDecision(getOperation(), getArgument(),
                 MetadataBuilder(&getContext())
                     .add("ranks", int64_t(ranks))
                     .add("weights", sets.weights().size())
                     .add("whole_bytes", bytes.whole)
                     .add("sliced_bytes", bytes.sliced)
                     .add("kept_whole", kept)
                     .get());
}

void ShardMatmulsPass::runOnOperation() {
  if (ranks < 1) {
    getOperation().emitError("expects at least one tensor-parallel rank, but "
                             "got ")
        << int64_t(ranks);
    return signalPassFailure();
  }
  if (ranks == 1)
    return;
  const ShardableColumnGroups sets(getOperation(), ranks);
  if (!sets.unequal().empty()) {
    getOperation().emitError(sets.unequal())
        << "; use a number that divides them";
    return signalPassFailure();
  }
  if (sets.weights().empty()) {
    getOperation().emitError("--parallel tp=")
        << int64_t(ranks) << ": no matmul of this model can be sharded"
        << (sets.reasons().empty() ? "" : ": " + sets.reasons().front())
        << "; remove tp";
    return signalPassFailure();
  }
  const SlicedBytes bytes =
      sliceWeights(getOperation(), sets.weights(), ranks);
  for (auto function : getOperation().getOps<func::FuncOp>())
    FunctionSharding(function, sets, ranks).run();
  setAxis(getOperation(), &qlora_mesh::tp, ranks);
  recordMetadata(sets, bytes);
}
