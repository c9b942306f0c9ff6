// SPDX-License-Identifier: MIT

// lower-to-program: values get buffers, ops become commands.
//
//   %y = model.linear %x, %w init %y0 : ...
//
// becomes, if nothing reads %y0 afterwards,
//
//   program.launch @matmul(%x read bf16, %w read bf16, %y0 read_write bf16)
//       constants [64, 64, 8, ...] rows 0 label "model.layers.0.q_proj"
//
// Memory/StepMemory.h decides which values share a buffer, and which are
// written directly to their destination. This pass creates the buffers, and
// copies the values that are not written to their destination.

#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"
#include "compiler/Schedule/Commands.h"
#include "compiler/Schedule/ParameterLayout.h"
#include "compiler/Schedule/StepLowering.h"

#include "mlir/IR/Threading.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

namespace qlora {
#define GEN_PASS_DEF_LOWERTOPROGRAM
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class LowerToProgramPass
    : public qlora::impl::LowerToProgramBase<LowerToProgramPass> {
public:
  using LowerToProgramBase::LowerToProgramBase;

private:
  void runOnOperation() override;
};
} // namespace

/// Clones the entry without the commands that only a step's last micro-batch
/// runs (StepPhase::Exchange).
static void makeInnerMicroBatch(program::EntryOp last) {
  OpBuilder builder(last);
  auto inner = cast<program::EntryOp>(builder.clone(*last));
  inner.setKind(program::EntryKind::Accumulate);
  inner->removeAttr(kDecisionsAttr);
  for (Operation &op :
       llvm::make_early_inc_range(llvm::reverse(inner.getBody().front())))
    if (op.hasAttr(kOnceAStepAttr) ||
        (isa<program::ViewOp, program::BufferOp>(op) && op.use_empty()))
      op.erase();
  for (Operation &op : last.getBody().front())
    op.removeAttr(kOnceAStepAttr);
}

static bool readsRounded(StepOp step) {
  const auto isRounded = [](auto op) { return op.getRounded(); };
  return llvm::any_of(step.getBody().getOps<WeightOp>(), isRounded) ||
         llvm::any_of(step.getBody().getOps<GatherWeightOp>(), isRounded);
}

static bool keepsResiduals(StepOp step) {
  return llvm::any_of(step.getBody().getOps<StoreFlatOp>(), [](StoreFlatOp op) {
    return op.getFlat() == FlatKind::Residual;
  });
}

static bool copiesToHost(StepOp step) {
  return !step.getBody().getOps<CopyToHostOp>().empty();
}

static void emitArenas(OpBuilder &builder, Location loc,
                       const ParameterLayout &layout, int64_t inputBytes,
                       int64_t resultBytes, bool offloadStates,
                       ArrayRef<StepOp> steps) {
  auto arena = [&](program::Arena kind, int64_t bytes) {
    program::ArenaOp::create(builder, loc, kind, bytes, kArenaAlignment);
  };
  arena(program::Arena::Frozen, layout.getFrozenBytes());
  if (layout.isOfTraining() || layout.hasTrainable())
    arena(program::Arena::Trainable, layout.getFlatBytes());
  if (layout.isOfTraining()) {
    arena(program::Arena::Gradient, layout.getFlatBytes());
    program::ArenaOp::create(builder, loc, program::Arena::State,
                             layout.getStateBytes(), kArenaAlignment,
                             offloadStates);
  }
  if (llvm::any_of(steps, readsRounded))
    arena(program::Arena::Rounded, layout.getFlatBytes() / 2);
  // plan-memory sets the sizes of the next two arenas.
  arena(program::Arena::Activation, 0);
  arena(program::Arena::Workspace, 0);
  arena(program::Arena::Input, inputBytes);
  arena(program::Arena::Result, resultBytes);
  if (layout.getHostBytes() > 0)
    arena(program::Arena::Host, layout.getHostBytes());
  if (llvm::any_of(steps, keepsResiduals))
    arena(program::Arena::Residual, layout.getFlatBytes());
  if (llvm::any_of(steps, copiesToHost))
    arena(program::Arena::Saved, 0); // plan-memory sets the size
  if (layout.getCacheBytes() > 0)
    arena(program::Arena::Cache, layout.getCacheBytes());
}

void LowerToProgramPass::runOnOperation() {
  ModuleOp module = getOperation();
  FailureOr<ParameterLayout> layout = ParameterLayout::of(module);
  if (failed(layout))
    return signalPassFailure();
  OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
  layout->emit(builder, module);
  KernelSymbols kernels(module);
  int64_t tokens = 0, inputs = 4, results = 0;
  SmallVector<StepOp> steps(module.getOps<StepOp>());
  for (StepOp step : steps) {
    tokens = std::max<int64_t>(tokens, step.getBatch() * step.getLength());
    results = std::max(results, resultArenaBytes(step));
    for (auto name : step.getInputs().getAsRange<StringAttr>())
      inputs = std::max<int64_t>(
          inputs, 1 + (llvm::find(kStepInputs, name.getValue()) -
                       std::begin(kStepInputs)));
  }
  emitArenas(builder, module.getLoc(), *layout, inputBytes(inputs, tokens),
             results, offloadStates, steps);
  // The constructors plan the memory of all steps in parallel. Kernels and
  // entries are created in the order of the steps.
  std::vector<std::unique_ptr<StepLowering>> lowerings(steps.size());
  parallelFor(&getContext(), 0, steps.size(), [&](size_t i) {
    lowerings[i] =
        std::make_unique<StepLowering>(steps[i], *layout, kernels, tokens);
  });
  for (auto [step, lowering] : llvm::zip_equal(steps, lowerings)) {
    FailureOr<program::EntryOp> entry = lowering->run(builder);
    if (failed(entry))
      return signalPassFailure();
    if (Attribute decisions = step->getAttr(kDecisionsAttr))
      (*entry)->setAttr(kDecisionsAttr, decisions);
    if (entry->getKind() == program::EntryKind::AccumulateLast)
      makeInnerMicroBatch(*entry);
  }
  for (Operation &op : llvm::make_early_inc_range(*module.getBody()))
    if (isa<StepOp, model::ParameterOp, CacheOp>(op))
      op.erase();
}
