// SPDX-License-Identifier: MIT

// unroll-micro-batches: a pipeline stage runs a micro-batch in chunks of rows,
// so that other stages work at the same time.
//
//   train.step accumulate batch 1 { forward; backward }
//
// becomes, as the first of two stages with three chunks,
//
//   train.step accumulate batch 3 {
//     %ids0, %ids1, %ids2 = model.split %ids {rows}
//     forward 0, forward 1, backward 0, forward 2, backward 1, backward 2 }
//
// in the order of PipelineOrder.h. A turn consists of the ops between two of
// the stage's sends and receives.

#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"
#include "compiler/Support/PipelineOrder.h"
#include "dialects/Model/Arithmetic.h"
#include "dialects/Program/Program.h"
#include "dialects/Train/Train.h"

#include <map>

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

/// A step whose ops are repeated for each chunk.
class ChunkedStep {
public:
  /// Each chunk gets an equal part of each of the batch's `lines` row groups.
  ChunkedStep(StepOp step, int64_t chunks, int64_t lines)
      : step(step), block(step.getBody().front()), b(step.getContext()),
        chunks(chunks), lines(lines), copies(chunks) {}

  /// Repeats ops in the order of `turns`. The stage has `parts` virtual stages.
  /// `isLast`: it is the pipeline's last stage.
  void run(ArrayRef<PipelineTurn> turns, int64_t parts, bool isLast);

private:
  void sortOps(int64_t parts, bool isLast);
  void divideInputs();
  void take(const PipelineTurn &turn);
  void drawAsWhole(Operation *op, int64_t chunk) const;
  void joinResult(ResultOp result);
  Value sum(ArrayRef<Value> values);
  Value joinRows(ArrayRef<Value> values);

  StepOp step;
  Block &block;
  OpBuilder b;
  const int64_t chunks, lines;
  /// The original ops, in order and by turn; each chunk gets clones.
  SmallVector<Operation *> ops;
  std::map<std::tuple<PipelineTurn::Kind, bool, int64_t>,
           SmallVector<Operation *>>
      opsOfTurns;
  std::vector<IRMapping> copies;
};
} // namespace

/// Returns whether the op names outside memory, which all chunks share.
static bool isOutside(Operation *op) {
  auto memory = dyn_cast<MemoryOp>(op);
  return memory && memory.getOutsideMemory();
}

/// Returns whether the op is a result that is read once for all chunks.
static bool isOfAll(Operation *op) {
  auto result = dyn_cast<ResultOp>(op);
  return result && !result.getAccumulate();
}

/// Gives chunk c the c-th range of each group of rows.
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

/// Makes random numbers depend on the row's index in the whole batch.
void ChunkedStep::drawAsWhole(Operation *op, int64_t chunk) const {
  op->walk([&](RowRandomOp random) {
    random.setRuns(chunks);
    random.setRun(chunk);
    random.setRunRows(rowCount(op) / lines);
  });
}

/// Assigns ops to turns. A receive begins the forward of the next virtual
/// stage, or the backward of the previous one. The pipeline's last virtual
/// stage starts its backward, and the first one its forward, without a receive.
void ChunkedStep::sortOps(int64_t parts, bool isLast) {
  using Kind = PipelineTurn::Kind;
  const bool isFirst = program::stageOf(step->getParentOfType<ModuleOp>()) == 0;
  int64_t forward = isFirst ? 0 : -1, backward = isLast ? parts - 1 : parts;
  for (Operation *op : ops) {
    int64_t &part = isBackward(op) ? backward : forward;
    const bool isReceived = isa<ReceiveOp>(op);
    if (isReceived)
      part += isBackward(op) ? -1 : 1;
    if (isOfAll(op))
      continue;
    const Kind kind = isReceived     ? Kind::kReceive
                      : isa<SendOp>(op) ? Kind::kSend
                                        : Kind::kCompute;
    opsOfTurns[{kind, isBackward(op), std::clamp<int64_t>(part, 0, parts - 1)}]
        .push_back(op);
  }
}

void ChunkedStep::take(const PipelineTurn &turn) {
  const auto found = opsOfTurns.find({turn.kind, turn.isBackward, turn.part});
  if (found == opsOfTurns.end())
    return;
  for (Operation *op : found->second)
    drawAsWhole(b.clone(*op, copies[turn.chunk]), turn.chunk);
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

/// Joins the chunks' rows in the order of the batch.
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

/// Joins a result that is read at the end of the step for all chunks.
void ChunkedStep::joinResult(ResultOp result) {
  SmallVector<Value> values;
  for (const IRMapping &copy : copies)
    values.push_back(copy.lookup(result.getValue()));
  const bool isOfRows = tensorOf(result.getValue()).getRank() > 1;
  auto joined = cast<ResultOp>(b.clone(*result));
  joined.getValueMutable().assign(isOfRows ? joinRows(values) : sum(values));
  joined->moveBefore(&block, block.end());
}

void ChunkedStep::run(ArrayRef<PipelineTurn> turns, int64_t parts,
                      bool isLast) {
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
  sortOps(parts, isLast);
  for (const PipelineTurn &turn : turns)
    take(turn);
  for (Operation *op : ops)
    if (isOfAll(op))
      joinResult(cast<ResultOp>(op));
  for (Operation *op : llvm::reverse(ops))
    op->erase();
  step.setBatch(step.getBatch() * chunks);
  step.setChunks(chunks);
}

/// Refuses a router loss: it depends on how all rows together choose experts.
static LogicalResult checkLosses(StepOp step) {
  for (auto result : step.getBody().getOps<ResultOp>())
    if (result.getName() == "router_loss")
      return step.emitError("--num-micro-batches: the router loss needs all "
                            "rows of a micro-batch, not chunks; use 1, or "
                            "train without the router loss");
  return success();
}

void UnrollMicroBatchesPass::runOnOperation() {
  StepOp step = getOperation();
  const auto module = step->getParentOfType<ModuleOp>();
  const int64_t stages = model::meshOf(module).pp,
                stage = program::stageOf(module);
  if (chunks < 1 || lines < 1 || parts < 1 ||
      (parts > 1 && chunks % stages != 0)) {
    step.emitError("expects chunks, lines and parts of at least 1, and with "
                   "parts above 1 a multiple of the stages as chunks, but got "
                   "chunks=")
        << int64_t(chunks) << " lines=" << int64_t(lines)
        << " parts=" << int64_t(parts) << " for " << stages << " stages";
    return signalPassFailure();
  }
  const bool isTrained = step.getKind() == StepKind::Accumulate;
  if (chunks == 1 || (!isTrained && step.getKind() != StepKind::Evaluate))
    return;
  if (failed(checkLosses(step)))
    return signalPassFailure();
  const PipelineForm form = {stages, parts, chunks, allForwardsFirst,
                             isTrained};
  ChunkedStep(step, chunks, lines)
      .run(pipelineOrder(form, stage), parts, stage + 1 == stages);
  recordDecision(step, getArgument(),
                 MetadataBuilder(&getContext())
                     .add("chunks", int64_t(chunks))
                     .add("in_flight", chunksInFlight(form, stage))
                     .get());
}
