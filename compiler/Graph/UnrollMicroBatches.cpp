// SPDX-License-Identifier: MIT

// unroll-micro-batches: a stage works through a batch in chunks of rows, so
// that the other stages of the pipeline have something to do meanwhile.
//
//   train.step accumulate batch 1 { forward; backward }
//
// becomes, as the first of two stages with three chunks,
//
//   train.step accumulate batch 3 {
//     %ids0, %ids1, %ids2 = model.split %ids {rows}
//     forward 0, forward 1, backward 0, forward 2, backward 1, backward 2 }
//
// That is the schedule 1F1B (Narayanan et al., 2019: PipeDream-Flush;
// Megatron-LM): after as many forwards as there are stages behind it, a stage
// does one forward and one backward in turn, and so holds no more than that
// many chunks' activations, however many there are. With `all-forwards-first`
// it is GPipe's (Huang et al., 2019).
//
// Who sends waits until the other side receives, so that both have to do it in
// one order. Where forwards and backwards take turns, the gradient is received
// before the forward's values are sent, as the next stage sends it before it
// receives the next chunk; where all forwards come first, that one receives it
// before.

#include "compiler/Decisions.h"
#include "compiler/Passes.h"
#include "dialects/Model/Arithmetic.h"
#include "dialects/Program/Program.h"
#include "dialects/Train/Train.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

namespace qlora {
#define GEN_PASS_DEF_UNROLLMICROBATCHES
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class UnrollMicroBatchesPass
    : public qlora::impl::UnrollMicroBatchesBase<UnrollMicroBatchesPass> {
public:
  using UnrollMicroBatchesBase::UnrollMicroBatchesBase;

private:
  void runOnOperation() override;
};

/// The forward or the backward of a chunk.
struct Turn {
  bool isBackward;
  int64_t chunk;
};

/// One step, which is done again for each chunk.
class ChunkedStep {
public:
  /// Rows of a chunk are of `lines` runs of the batch's.
  ChunkedStep(StepOp step, int64_t chunks, int64_t lines)
      : step(step), block(step.getBody().front()), b(step.getContext()),
        chunks(chunks), lines(lines), copies(chunks) {}

  /// With `takesGradientsFirst`, before what a forward makes is sent.
  void run(ArrayRef<Turn> turns, bool takesGradientsFirst);

private:
  void divideInputs();
  void takeTurns(ArrayRef<Turn> turns, bool takesGradientsFirst);
  void cloneIf(int64_t chunk, function_ref<bool(Operation *)> isWanted);
  void drawAsWhole(Operation *op, int64_t chunk) const;
  void joinResult(ResultOp result);
  Value sum(ArrayRef<Value> values);
  Value joinRows(ArrayRef<Value> values);

  StepOp step;
  Block &block;
  OpBuilder b;
  const int64_t chunks, lines;
  SmallVector<Operation *> ops; ///< of one chunk
  std::vector<IRMapping> copies;
};
} // namespace

static SmallVector<Turn> turnsOf(int64_t chunks, int64_t waiting) {
  SmallVector<Turn> turns;
  for (int64_t turn = 0; turn < chunks + waiting; ++turn) {
    if (turn < chunks)
      turns.push_back({false, turn});
    if (turn >= waiting)
      turns.push_back({true, turn - waiting});
  }
  return turns;
}

/// There once, whoever reads it: it is outside of the step.
static bool isOutside(Operation *op) {
  auto memory = dyn_cast<MemoryOp>(op);
  return memory && memory.getOutsideMemory();
}

/// Read once, of all chunks.
static bool isOfAll(Operation *op) {
  auto result = dyn_cast<ResultOp>(op);
  return result && !result.getAccumulate();
}

/// Chunk c has the c-th part of each run.
void ChunkedStep::divideInputs() {
  for (BlockArgument argument : block.getArguments()) {
    RankedTensorType part = tensorOf(argument);
    SmallVector<int64_t> shape(part.getShape());
    shape[0] *= chunks;
    argument.setType(part.clone(shape));
    shape[0] = part.getDimSize(0) / lines;
    const SmallVector<Type> types(chunks * lines, part.clone(shape));
    auto split = SplitOp::create(b, step.getLoc(), types, argument, true);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      SmallVector<Value> runs;
      for (int64_t line = 0; line < lines; ++line)
        runs.push_back(split.getParts()[line * chunks + chunk]);
      copies[chunk].map(
          argument, lines == 1
                        ? runs.front()
                        : ConcatOp::create(b, step.getLoc(), part, runs, true));
    }
  }
}

/// Random numbers are those of the whole batch's rows.
void ChunkedStep::drawAsWhole(Operation *op, int64_t chunk) const {
  op->walk([&](RowRandomOp random) {
    random.setRuns(chunks);
    random.setRun(chunk);
    random.setRunRows(rowCount(op) / lines);
  });
}

void ChunkedStep::cloneIf(int64_t chunk,
                          function_ref<bool(Operation *)> isWanted) {
  for (Operation *op : ops)
    if (isWanted(op) && !isOfAll(op))
      drawAsWhole(b.clone(*op, copies[chunk]), chunk);
}

static bool isReceived(Operation *op) {
  return isBackward(op) && isa<ReceiveOp>(op);
}
static bool isSent(Operation *op) { return !isBackward(op) && isa<SendOp>(op); }

void ChunkedStep::takeTurns(ArrayRef<Turn> turns, bool takesGradientsFirst) {
  for (auto [i, turn] : llvm::enumerate(turns)) {
    if (turn.isBackward) {
      if (!takesGradientsFirst || turns[i - 1].isBackward)
        cloneIf(turn.chunk, isReceived);
      cloneIf(turn.chunk,
              [](Operation *op) { return isBackward(op) && !isReceived(op); });
      continue;
    }
    cloneIf(turn.chunk,
            [](Operation *op) { return !isBackward(op) && !isSent(op); });
    if (takesGradientsFirst && i + 1 < turns.size() && turns[i + 1].isBackward)
      cloneIf(turns[i + 1].chunk, isReceived);
    cloneIf(turn.chunk, isSent);
  }
}

Value ChunkedStep::sum(ArrayRef<Value> values) {
  Value total = values.front();
  RankedTensorType type = tensorOf(total);
  const auto full = MapAttr::get(step.getContext(), MapKind::Full, 1);
  for (Value value : values.drop_front())
    total =
        buildRows(b, step.getLoc(), {type}, {total, value}, matrixColumns(type),
                  {full, full}, "sum",
                  [&](OpBuilder &inner, ValueRange rows) -> SmallVector<Value> {
                    return {
                        Arithmetic(inner, step.getLoc()).add(rows[0], rows[1])};
                  })
            ->getResult(0);
  return total;
}

/// Rows of chunks in the order of the batch's.
Value ChunkedStep::joinRows(ArrayRef<Value> values) {
  RankedTensorType type = tensorOf(values.front());
  SmallVector<int64_t> shape(type.getShape());
  shape[0] /= lines;
  const SmallVector<Type> runs(lines, type.clone(shape));
  SmallVector<Value> parts(lines * chunks);
  for (auto [chunk, value] : llvm::enumerate(values)) {
    if (lines == 1) {
      parts[chunk] = value;
      continue;
    }
    auto split = SplitOp::create(b, step.getLoc(), runs, value, true);
    for (auto [line, part] : llvm::enumerate(split.getParts()))
      parts[line * chunks + chunk] = part;
  }
  shape[0] = type.getDimSize(0) * chunks;
  return ConcatOp::create(b, step.getLoc(), type.clone(shape), parts, true);
}

/// What is read at the end of the step is of all chunks.
void ChunkedStep::joinResult(ResultOp result) {
  SmallVector<Value> values;
  for (const IRMapping &copy : copies)
    values.push_back(copy.lookup(result.getValue()));
  const bool isOfRows = tensorOf(result.getValue()).getRank() > 1;
  auto joined = cast<ResultOp>(b.clone(*result));
  joined.getValueMutable().assign(isOfRows ? joinRows(values) : sum(values));
  joined->moveBefore(&block, block.end());
}

void ChunkedStep::run(ArrayRef<Turn> turns, bool takesGradientsFirst) {
  IRMapping shared;
  for (Operation &op : block) {
    if (!isOutside(&op)) {
      ops.push_back(&op);
      continue;
    }
    for (Value result : op.getResults())
      shared.map(result, result);
  }
  for (IRMapping &copy : copies)
    copy = shared;
  b.setInsertionPointToEnd(&block);
  divideInputs();
  takeTurns(turns, takesGradientsFirst);
  for (Operation *op : ops)
    if (isOfAll(op))
      joinResult(cast<ResultOp>(op));
  for (Operation *op : llvm::reverse(ops))
    op->erase();
  step.setBatch(step.getBatch() * chunks);
  step.setChunks(chunks);
}

/// A loss of routers is of how all rows choose experts together.
static LogicalResult checkLosses(StepOp step) {
  for (auto result : step.getBody().getOps<ResultOp>())
    if (result.getName() == "router_loss")
      return step.emitError("the loss of routers is of all rows of a "
                            "micro-batch, and not of chunks of it; give "
                            "--num-micro-batches 1, or train without it");
  return success();
}

void UnrollMicroBatchesPass::runOnOperation() {
  StepOp step = getOperation();
  const auto module = step->getParentOfType<ModuleOp>();
  if (chunks < 1 || lines < 1) {
    step.emitError("expects at least one chunk of a batch, but got ")
        << int64_t(chunks) << " of " << int64_t(lines) << " runs of lines";
    return signalPassFailure();
  }
  const bool isTrained = step.getKind() == StepKind::Accumulate;
  if (chunks == 1 || (!isTrained && step.getKind() != StepKind::Evaluate))
    return;
  if (failed(checkLosses(step)))
    return signalPassFailure();
  const int64_t behind =
      program::stagesOf(module) - 1 - program::stageOf(module);
  const int64_t waiting =
      allForwardsFirst ? int64_t(chunks) : std::min<int64_t>(behind, chunks);
  SmallVector<Turn> turns = turnsOf(chunks, waiting);
  if (!isTrained)
    llvm::erase_if(turns, [](const Turn &turn) { return turn.isBackward; });
  ChunkedStep(step, chunks, lines).run(turns, waiting < chunks);
  recordDecision(
      step, getArgument(),
      Facts(&getContext())
          .add("chunks", int64_t(chunks))
          .add("in_flight",
               isTrained ? std::min<int64_t>(waiting + 1, chunks) : int64_t(1))
          .get());
}
