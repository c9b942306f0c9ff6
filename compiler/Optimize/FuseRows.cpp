// SPDX-License-Identifier: MIT

// fuse-rows: fuses chains of row ops into one row region, so that values
// between them stay in registers.
//
//   %h = model.add %a, %b            // rows of 64
//   %n = model.rms_norm %h, %w
//
// becomes
//
//   %h, %n = model.rows(%a, %b, %w) columns = 64 { add; rms_norm }

#include "compiler/Passes.h"
#include "dialects/Train/Train.h"

#include "mlir/IR/Dominance.h"
#include "mlir/IR/PatternMatch.h"
#include "mlir/Transforms/CSE.h"

using namespace mlir;
using namespace qlora::model;
using namespace qlora::train;

namespace qlora {
#define GEN_PASS_DEF_FUSEROWS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class FuseRowsPass : public qlora::impl::FuseRowsBase<FuseRowsPass> {
public:
  using FuseRowsBase::FuseRowsBase;

private:
  void runOnOperation() override;
};
} // namespace

/// Maximum buffers of one kernel; with more, its registers would spill.
static constexpr unsigned kMaxBuffers = 16;

/// Converts a row op to a `model.rows` in place.
static RowsOp asRows(RowOp op) {
  if (auto rows = dyn_cast<RowsOp>(op.getOperation()))
    return rows;
  OpBuilder builder(op);
  Operation *rows = buildRows(
      builder, op.getLoc(), op->getResultTypes(), op->getOperands(),
      op.getRowColumns(), op.getRowMaps(), op->getName().stripDialect(),
      [&](OpBuilder &inner, ValueRange arguments) {
        return op.buildRow(inner, arguments);
      });
  copyStage(op, rows);
  op->replaceAllUsesWith(rows->getResults());
  op->erase();
  return cast<RowsOp>(rows);
}

/// Returns where a fusion of producer and consumer can be placed: at the
/// consumer if nothing reads the producer before it; else at the producer if
/// all operands of the consumer exist there; else null.
static Operation *fusedPosition(RowsOp producer, RowsOp consumer) {
  auto readAfter = [&](Operation *user) {
    return user == consumer || consumer->isBeforeInBlock(user);
  };
  if (llvm::all_of(producer->getUsers(), readAfter))
    return consumer;
  auto ready = [&](Value value) {
    Operation *def = value.getDefiningOp();
    return !def || def == producer || def->isBeforeInBlock(producer);
  };
  return llvm::all_of(consumer->getOperands(), ready) ? producer.getOperation()
                                                      : nullptr;
}

/// Returns whether row r of an op that reads `result` through `map` reads only
/// what row r of the producer wrote.
static bool readsSameRow(OpResult result, MapAttr map) {
  auto producer = cast<RowsOp>(result.getOwner());
  return producer.isScalarResult(result.getResultNumber())
             ? map.getKind() == MapKind::Scalar && map.getGroup() == 1
             : map.getKind() == MapKind::Full;
}

/// Returns the results with readers other than `consumer`.
static SmallVector<OpResult> resultsReadBeside(RowsOp producer,
                                               RowsOp consumer) {
  return llvm::filter_to_vector(producer->getResults(), [&](OpResult result) {
    return llvm::any_of(result.getUsers(),
                        [&](Operation *user) { return user != consumer; });
  });
}

static bool canFuse(RowsOp producer, RowsOp consumer) {
  if (producer->getBlock() != consumer->getBlock() ||
      producer.getColumns() != consumer.getColumns() ||
      rowCount(producer) != rowCount(consumer) ||
      isBackward(producer) != isBackward(consumer))
    return false;
  for (auto [operand, map] :
       llvm::zip_equal(consumer.getInputs(), consumer.getRowMaps()))
    if (operand.getDefiningOp() == producer &&
        !readsSameRow(cast<OpResult>(operand), map))
      return false;
  // Results with other readers come first in the fused op, and the first result
  // of a row op must be full.
  SmallVector<OpResult> kept = resultsReadBeside(producer, consumer);
  if (!kept.empty() && producer.isScalarResult(kept[0].getResultNumber()))
    return false;
  unsigned buffers = producer->getNumOperands() + producer->getNumResults() +
                     consumer->getNumOperands() + consumer->getNumResults();
  return buffers <= kMaxBuffers;
}

/// Rounds the values of a row to their types in memory. A value read in the
/// same kernel then has the same bits as if it came from memory, so neither
/// fusion nor recomputation changes results. 8-bit codes need no rounding.
static SmallVector<Value> roundedAsStored(OpBuilder &builder, RowsOp rows,
                                          ArrayRef<Value> values) {
  SmallVector<Value> rounded(values);
  for (auto [value, type] : llvm::zip_equal(rounded, rows.getResultTypes())) {
    Type stored = cast<RankedTensorType>(type).getElementType();
    if (stored.isBF16() || stored.isF16())
      value = RowRoundOp::create(builder, rows.getLoc(), value.getType(), value,
                                 stored);
  }
  return rounded;
}

/// Merges the two ops into one at `position`. Drops results that only the
/// consumer read.
static RowsOp fuseInto(RowsOp producer, RowsOp consumer, Operation *position) {
  SmallVector<Value> inputs;
  SmallVector<MapAttr> maps;
  auto addInputs = [&](RowsOp op) {
    for (auto [operand, map] :
         llvm::zip_equal(op.getInputs(), op.getRowMaps())) {
      bool known = llvm::any_of(llvm::zip_equal(inputs, maps), [&](auto pair) {
        return std::get<0>(pair) == operand && std::get<1>(pair) == map;
      });
      if (known || operand.getDefiningOp() == producer)
        continue;
      inputs.push_back(operand);
      maps.push_back(map);
    }
  };
  addInputs(producer);
  addInputs(consumer);

  SmallVector<unsigned> kept;
  SmallVector<Type> types;
  for (OpResult result : resultsReadBeside(producer, consumer)) {
    kept.push_back(result.getResultNumber());
    types.push_back(result.getType());
  }
  llvm::append_range(types, consumer->getResultTypes());

  OpBuilder builder(position);
  std::string label = (producer.getLabel().value_or("rows") + "__" +
                       consumer.getLabel().value_or("rows"))
                          .str();
  auto fused = buildRows(
      builder, consumer.getLoc(), types, inputs, consumer.getColumns(), maps,
      label, [&](OpBuilder &inner, ValueRange arguments) {
        auto argumentsOf = [&](RowsOp op, ValueRange produced) {
          SmallVector<Value> values;
          for (auto [operand, map] :
               llvm::zip_equal(op.getInputs(), op.getRowMaps())) {
            if (operand.getDefiningOp() == producer) {
              unsigned number = cast<OpResult>(operand).getResultNumber();
              values.push_back(produced[number]);
              continue;
            }
            for (unsigned i = 0; i < inputs.size(); ++i)
              if (inputs[i] == operand && maps[i] == map)
                values.push_back(arguments[i]);
          }
          return values;
        };
        SmallVector<Value> first =
            producer.buildRow(inner, argumentsOf(producer, {}));
        SmallVector<Value> second = consumer.buildRow(
            inner, argumentsOf(consumer, roundedAsStored(inner, producer,
                                                         first)));
        SmallVector<Value> yielded =
            llvm::map_to_vector(kept, [&](unsigned i) { return first[i]; });
        llvm::append_range(yielded, second);
        return yielded;
      });
  copyStage(consumer, fused);
  for (auto [i, number] : llvm::enumerate(kept))
    producer->getResult(number).replaceUsesWithIf(
        fused->getResult(i),
        [&](OpOperand &use) { return use.getOwner() != consumer; });
  consumer->replaceAllUsesWith(fused->getResults().drop_front(kept.size()));
  consumer->erase();
  producer->erase();
  return cast<RowsOp>(fused);
}

/// Fuses producers into `rows` until none fits.
static RowsOp fuseProducers(RowsOp rows) {
  for (bool changed = true; changed;) {
    changed = false;
    for (Value input : rows.getInputs()) {
      auto producer = input.getDefiningOp<RowsOp>();
      if (!producer || !canFuse(producer, rows))
        continue;
      Operation *position = fusedPosition(producer, rows);
      if (!position)
        continue;
      rows = fuseInto(producer, rows, position);
      changed = true;
      break;
    }
  }
  return rows;
}

/// Removes repeated and unused arithmetic, which derivative rules create.
static void cleanUp(RowsOp rows) {
  IRRewriter rewriter(rows.getContext());
  DominanceInfo dominance(rows);
  eliminateCommonSubExpressions(rewriter, dominance, rows);
  eraseDeadArithmetic(rows);
}

void FuseRowsPass::runOnOperation() {
  Region &body = getOperation().getBody();
  // Producers are visited before consumers, so an op that was fused into a
  // later one is not visited again.
  SmallVector<RowsOp> rows = llvm::map_to_vector(
      SmallVector<RowOp>(body.getOps<RowOp>()), asRows);
  if (fuse)
    for (RowsOp op : rows)
      fuseProducers(op);
  for (auto op : body.getOps<RowsOp>())
    cleanUp(op);
}
