// SPDX-License-Identifier: MIT

// shard-experts: each rank computes some of the experts, for all ranks' rows.
//
//   %order, %places, %experts, %offsets = model.sort_by_expert %choices
//   %rows = model.gather_rows %x, %order, %places     // x [B, T, H]
//   %h = model.grouped_linear %rows, %w, %offsets     // w [E * out, in]
//   %y = model.combine_rows %h, %order, %places weights %weights
//
// becomes, for two ranks,
//
//   %all = model.all_gather %choices                  // [2 B, T, k]
//   %order, %places, %experts, %offsets, %own =
//       model.sort_by_expert %all {ranks = 2}
//   %xs = model.all_gather %x                         // [2 B, T, H]
//   %rows = model.gather_rows %xs, %order, %places
//   %h = model.grouped_linear %rows, %w, %own         // w [E / 2 * out, in]
//   %ws = model.all_gather %weights
//   %s = model.combine_rows %h, %order, %places weights %ws
//   %y = model.reduce_scatter %s                      // [B, T, H]
//
// This is expert parallelism (Lepikhin et al., 2020: GShard) without dropped
// tokens. In the worst case all tokens choose experts of one rank, so the plan
// has memory for the rows of all ranks. Every rank gets all tokens, not only
// those of its experts. If each token chooses at least as many experts as there
// are ranks, this sends no more data. Rows of other ranks' experts are absent,
// and do not count in matmuls and gradients.
//
// Trainable weights are unsharded. A rank's offsets leave the groups
// of other ranks' experts empty, so its gradients for them are zero. The
// all-reduce of data parallelism adds the gradients of all ranks.

#include "compiler/Partition/Reshard.h"
#include "compiler/Partition/WeightShards.h"
#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"
#include "dialects/Program/Program.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_SHARDEXPERTS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

class ShardExpertsPass
    : public qlora::impl::ShardExpertsBase<ShardExpertsPass> {
public:
  using ShardExpertsBase::ShardExpertsBase;

private:
  void runOnOperation() override;
  LogicalResult checkGroups();
  ShardedWeights findWeights();

  int64_t kept = 0; ///< number of expert weights that stay whole
};

/// Shards one forward function.
class ExpertSharding {
public:
  ExpertSharding(func::FuncOp function, const ShardedWeights &weights,
                 int64_t ranks)
      : function(function), weights(weights), ranks(ranks),
        tokens(tensorOf(function.getArgument(0)).getShape()) {}

  LogicalResult run();
  /// Returns the bytes that one rank sends in the forward.
  int64_t exchangedBytes() const {
    return (ranks - 1) * (rowsOfAll.bytes() + scattered);
  }

private:
  void shardGroups(GroupingOp op);
  LogicalResult joinRows(Operation *op);
  void useOwnGroups(WeightedMatmul product);
  void leaveGroups(Operation *op);

  func::FuncOp function;
  const ShardedWeights &weights;
  const int64_t ranks;
  const ArrayRef<int64_t> tokens;      ///< [B, T] of one rank
  DenseSet<Value> together;            ///< values with rows of all ranks
  Resharding rowsOfAll{Ranks::EP, Held::Rows, Held::Whole, [this](Value own) {
                         return withRows(own, ranks * tokens[0]);
                       }};
  /// Group offsets of all experts -> offsets of this rank's experts.
  DenseMap<Value, Value> ownOffsets;
  int64_t scattered = 0; ///< bytes of this rank's rows of reduced values
};

} // namespace

//===----------------------------------------------------------------------===//
// Weights
//===----------------------------------------------------------------------===//

LogicalResult ShardExpertsPass::checkGroups() {
  bool isAny = false;
  WalkResult outcome = getOperation().walk([&](GroupingOp op) {
    isAny = true;
    const int64_t groups = columnsOf(op.getGroupOffsets()) - 1;
    if (groups % ranks == 0)
      return WalkResult::advance();
    op->emitOpError("has ")
        << groups << " experts, not divisible by --parallel ep="
        << int64_t(ranks) << "; use a number that divides them";
    return WalkResult::interrupt();
  });
  if (outcome.wasInterrupted() || isAny)
    return failure(outcome.wasInterrupted());
  return getOperation().emitError("--parallel ep=")
         << int64_t(ranks) << ": the model has no experts; remove ep";
}

/// Returns the grouped matmul of which `use` is the weight; else null.
static WeightedMatmul groupedProduct(OpOperand &use) {
  auto product = dyn_cast<WeightedMatmul>(use.getOwner());
  const bool isWeight = product && &product.getWeightMutable() == &use;
  Value offsets = isWeight ? product.getGroupOffsets() : Value();
  return offsets && offsets.getDefiningOp<GroupingOp>() ? product
                                                        : WeightedMatmul();
}

/// Returns the weights that have one matrix per group in all uses, and a format
/// that can be sharded.
ShardedWeights ShardExpertsPass::findWeights() {
  ShardedWeights found;
  llvm::SetVector<StringAttr> whole;
  SymbolTable symbols(getOperation());
  getOperation().walk([&](WeightOp weight) {
    StringAttr name = weight.getParameterAttr().getAttr();
    auto parameter = symbols.lookup<ParameterOp>(name);
    if (parameter.getTrainable())
      return;
    for (OpOperand &use : weight->getUses()) {
      WeightedMatmul product = groupedProduct(use);
      if (!product) {
        whole.insert(name);
        continue;
      }
      const unsigned dimension = product.getGroupDimension();
      const ShardedWeight how = {dimension,
                                 {tensorOf(weight).getDimSize(dimension)}};
      if (found.insert({name, how}).first->second != how ||
          !canSliceParameter(parameter, how, ranks))
        whole.insert(name);
    }
  });
  for (StringAttr name : whole)
    kept += found.erase(name);
  return found;
}

//===----------------------------------------------------------------------===//
// Rows
//===----------------------------------------------------------------------===//

void ExpertSharding::shardGroups(GroupingOp op) {
  Value rows = rowsOfAll.of(op->getOperand(0), op);
  StageCopier stage(op);
  OpBuilder builder(op, &stage);
  SmallVector<Value> shared = op.shardGroups(builder, rows, ranks);
  Value offsets = op.getGroupOffsets();
  for (auto [old, now] : llvm::zip(op->getResults(), shared)) {
    if (old == offsets)
      ownOffsets[now] = shared.back();
    else
      together.insert(now);
    old.replaceAllUsesWith(now);
  }
  op.erase();
}

/// Uses this rank's group offsets if the weight is sharded by groups.
void ExpertSharding::useOwnGroups(WeightedMatmul product) {
  auto weight = product.getWeight().getDefiningOp<WeightOp>();
  Value offsets = product.getGroupOffsets();
  if (weight && offsets &&
      weights.contains(weight.getParameterAttr().getAttr()))
    product->replaceUsesOfWith(offsets, ownOffsets.lookup(offsets));
}

/// Reduce-scatters the results, so that each rank gets its own tokens.
void ExpertSharding::leaveGroups(Operation *op) {
  StageCopier stage(op);
  OpBuilder builder(op, &stage);
  builder.setInsertionPointAfter(op);
  for (Value result : op->getResults()) {
    Value own = reshard(builder, op->getLoc(), result, Held::Partial,
                        Held::Rows, withRows(result, tokens[0]), Ranks::EP);
    result.replaceAllUsesExcept(own, own.getDefiningOp());
    scattered += tensorBytes(tensorOf(own));
  }
}

LogicalResult ExpertSharding::joinRows(Operation *op) {
  if (!isTokenwise(op))
    return op->emitOpError(
        "cannot be sharded by experts; train without --parallel ep");
  for (OpOperand &operand : op->getOpOperands())
    if (Value value = operand.get();
        !together.contains(value) && !value.getDefiningOp<WeightOp>() &&
        isOfTokens(value, tokens))
      operand.set(rowsOfAll.of(value, op));
  if (auto product = dyn_cast<WeightedMatmul>(op)) {
    useOwnGroups(product);
    product.noteRowsOfRanks(ranks);
  }
  const bool leaves = op->hasTrait<UngroupOp>();
  for (Value result : op->getResults()) {
    result.setType(withRows(result, ranks * tokens[0]));
    if (!leaves)
      together.insert(result);
  }
  if (leaves)
    leaveGroups(op);
  return success();
}

LogicalResult ExpertSharding::run() {
  for (Operation &op :
       llvm::make_early_inc_range(function.front().without_terminator())) {
    if (auto grouping = dyn_cast<GroupingOp>(op))
      shardGroups(grouping);
    else if (llvm::any_of(op.getOperands(), [&](Value value) {
               return together.contains(value);
             }))
      if (failed(joinRows(&op)))
        return failure();
  }
  return success();
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

void ShardExpertsPass::runOnOperation() {
  if (ranks < 1) {
    getOperation().emitError("expects at least one expert-parallel rank, but "
                             "got ")
        << int64_t(ranks);
    return signalPassFailure();
  }
  kept = 0;
  if (ranks == 1)
    return;
  if (failed(checkGroups()))
    return signalPassFailure();
  const ShardedWeights weights = findWeights();
  if (weights.empty() && kept > 0) {
    getOperation().emitError("--parallel ep=")
        << int64_t(ranks)
        << ": quantization blocks of expert weights cross ranks; remove ep, or "
           "use smaller blocks";
    return signalPassFailure();
  }
  const SlicedBytes sliced = sliceWeights(getOperation(), weights, ranks);
  int64_t bytes = 0;
  for (auto function : getOperation().getOps<func::FuncOp>()) {
    ExpertSharding sharing(function, weights, ranks);
    if (failed(sharing.run()))
      return signalPassFailure();
    bytes = std::max(bytes, sharing.exchangedBytes());
  }
  setAxis(getOperation(), &qlora_mesh::ep, ranks);
  recordDecision(getOperation(), getArgument(),
                 MetadataBuilder(&getContext())
                     .add("ranks", int64_t(ranks))
                     .add("weights", weights.size())
                     .add("kept_whole", kept)
                     .add("whole_bytes", sliced.whole)
                     .add("sliced_bytes", sliced.sliced)
                     .add("exchanged_bytes", bytes)
                     .get());
}
