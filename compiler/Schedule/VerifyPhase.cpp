// SPDX-License-Identifier: MIT

// verify-phase: what must hold after each phase, checked in every build.
//
// | phase    | nothing is left of         | and                              |
// |----------|----------------------------|----------------------------------|
// | adapt    |                            | shapes are static                |
// | step     | functions                  | there is one update              |
// | optimize | row ops that are not rows  | the flat layout is known         |
// | program  | model and train ops        | no buffer is read before written,|
// |          |                            | every buffer has a place         |

#include "compiler/Passes.h"
#include "dialects/Train/Train.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include "runtime/ABI/module.h"

using namespace mlir;
using namespace qlora;

namespace qlora {
#define GEN_PASS_DEF_VERIFYPHASE
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class VerifyPhasePass
    : public qlora::impl::VerifyPhaseBase<VerifyPhasePass> {
public:
  using VerifyPhaseBase::VerifyPhaseBase;

private:
  void runOnOperation() override;
};
} // namespace

/// The first tensor type with a dynamic dimension, or null.
static Type findDynamic(TypeRange types) {
  for (Type type : types)
    if (auto tensor = dyn_cast<RankedTensorType>(type);
        tensor && !tensor.hasStaticShape())
      return type;
  return Type();
}

static LogicalResult verifyAdapt(ModuleOp module) {
  WalkResult walk = module.walk([](Operation *op) {
    Type dynamic = findDynamic(op->getResultTypes());
    for (Region &region : op->getRegions())
      if (!dynamic)
        dynamic = findDynamic(region.getArgumentTypes());
    if (!dynamic)
      return WalkResult::advance();
    op->emitOpError("has the dynamic shape ") << dynamic << " after adapt";
    return WalkResult::interrupt();
  });
  return failure(walk.wasInterrupted());
}

static LogicalResult verifyStep(ModuleOp module) {
  for (auto function : module.getOps<func::FuncOp>())
    return function.emitOpError("is left after step");
  unsigned updates = llvm::count_if(
      module.getOps<train::StepOp>(), [](train::StepOp step) {
        return step.getKind() == train::StepKind::Update;
      });
  if (updates != 1)
    return module.emitError("expects one update step, but got ") << updates;
  return success();
}

static LogicalResult verifyOptimize(ModuleOp module) {
  WalkResult walk = module.walk([](model::RowOp op) {
    if (isa<model::RowsOp>(op.getOperation()))
      return WalkResult::advance();
    op->emitOpError("is left after optimize");
    return WalkResult::interrupt();
  });
  if (walk.wasInterrupted())
    return failure();
  if (!module->hasAttr("train.layout"))
    return module.emitError("has no train.layout after optimize");
  return success();
}

/// Buffers of the activation arena are written before they are read. Later
/// writes through views count for the whole buffer.
static LogicalResult verifyWrites(program::EntryOp entry) {
  DenseSet<Value> written;
  auto root = [](Value buffer) {
    while (auto view = buffer.getDefiningOp<program::ViewOp>())
      buffer = view.getSource();
    return buffer;
  };
  auto isScratch = [&](Value buffer) {
    return root(buffer).getDefiningOp<program::BufferOp>().getArena() ==
           program::Arena::Activation;
  };
  for (Operation &op : entry.getBody().front()) {
    if (auto fill = dyn_cast<program::FillOp>(op))
      written.insert(root(fill.getBuffer()));
    if (auto copy = dyn_cast<program::CopyOp>(op)) {
      if (isScratch(copy.getSource()) && !written.contains(root(copy.getSource())))
        return copy.emitOpError("reads a buffer that nothing has written");
      written.insert(root(copy.getTarget()));
    }
    auto launch = dyn_cast<program::LaunchOp>(op);
    if (!launch)
      continue;
    for (auto [buffer, access] :
         llvm::zip_equal(launch.getOperands(), launch.getAccess()))
      if ((access & QLORA_READ) && isScratch(buffer) &&
          !written.contains(root(buffer)))
        return launch.emitOpError("reads a buffer that nothing has written");
    for (auto [buffer, access] :
         llvm::zip_equal(launch.getOperands(), launch.getAccess()))
      if (access & QLORA_WRITE)
        written.insert(root(buffer));
  }
  return success();
}

static LogicalResult verifyProgram(ModuleOp module) {
  for (Operation &op : *module.getBody())
    if (!isa<program::ProgramDialect>(op.getDialect()))
      return op.emitOpError("is left after program");
  WalkResult walk = module.walk([](program::BufferOp buffer) {
    if (buffer.getOffset())
      return WalkResult::advance();
    buffer.emitOpError("has no offset after program");
    return WalkResult::interrupt();
  });
  if (walk.wasInterrupted())
    return failure();
  for (auto entry : module.getOps<program::EntryOp>())
    if (failed(verifyWrites(entry)))
      return failure();
  return success();
}

void VerifyPhasePass::runOnOperation() {
  ModuleOp module = getOperation();
  LogicalResult result =
      phase == "adapt"      ? verifyAdapt(module)
      : phase == "step"     ? verifyStep(module)
      : phase == "optimize" ? verifyOptimize(module)
      : phase == "program"
          ? verifyProgram(module)
          : module.emitError("verify-phase does not know the phase '")
                << phase << "'";
  if (failed(result))
    signalPassFailure();
}
