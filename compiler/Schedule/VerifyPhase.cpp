// SPDX-License-Identifier: MIT

// verify-phase: checks the invariants of each phase, in every build type.
//
// | phase    | none are left              | and                              |
// |----------|----------------------------|----------------------------------|
// | adapt    |                            | shapes are static                |
// | step     | functions                  | there is one update              |
// | optimize | row ops except model.rows  | the flat layout is known         |
// | program  | model and train ops        | every buffer has an offset, and  |
// |          |                            | accesses pass AccessCheck.h      |

#include "compiler/Passes.h"
#include "compiler/Schedule/Commands.h"
#include "dialects/Train/Train.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Threading.h"
#include "mlir/IR/Verifier.h"

#include "runtime/Module/AccessCheck.h"

using namespace mlir;
using namespace qlora;

namespace qlora {
#define GEN_PASS_DEF_VERIFYPHASE
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class VerifyPhasePass : public qlora::impl::VerifyPhaseBase<VerifyPhasePass> {
public:
  using VerifyPhaseBase::VerifyPhaseBase;

private:
  void runOnOperation() override;
};
} // namespace

/// Returns the first tensor type with a dynamic dimension, or null.
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
  if (updates != 1 && !train::onlyGenerates(module))
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

namespace {
/// Checks the commands of an entry by the arena bytes that they access.
class CommandVerifier {
public:
  LogicalResult run(program::EntryOp entry);

private:
  RangeUse useOf(Value buffer, qlora_access access);
  Status walk(Operation *command);

  AccessCheck check;
  SmallVector<program::BufferOp> buffers;
  DenseMap<Operation *, uint32_t> numbers; ///< index in `buffers`
};
} // namespace

RangeUse CommandVerifier::useOf(Value buffer, qlora_access access) {
  program::BufferOp root = rootOf(buffer);
  auto [number, isNew] = numbers.try_emplace(root, buffers.size());
  if (isNew)
    buffers.push_back(root);
  ByteRange range = rangeOf(buffer);
  return {static_cast<uint32_t>(range.arena), access, range.offset,
          range.bytes, number->second};
}

Status CommandVerifier::walk(Operation *command) {
  if (auto record = dyn_cast<program::RecordOp>(command))
    return check.record(queueOf(record), record.getEvent());
  if (auto wait = dyn_cast<program::WaitOp>(command))
    return check.wait(queueOf(wait), wait.getEvent());
  std::vector<RangeUse> uses;
  for (auto [buffer, access] : accessesOf(command))
    uses.push_back(useOf(buffer, access));
  return check.access(queueOf(command), uses);
}

LogicalResult CommandVerifier::run(program::EntryOp entry) {
  std::vector<RangeUse> inputs, results;
  for (auto bind : entry.getBody().getOps<program::BindOp>()) {
    RangeUse use = useOf(bind.getBuffer(), QLORA_READ);
    (use.arena == QLORA_ARENA_INPUT ? inputs : results).push_back(use);
  }
  check.begin(eventCountOf(entry), inputs);
  for (Operation *command : commandsOf(entry)) {
    Status status = walk(command);
    if (status.isOk())
      continue;
    InFlightDiagnostic error = command->emitOpError() << status.message();
    if (std::optional<uint32_t> other = check.overwriter())
      error.attachNote(buffers[*other].getLoc()) << "the other buffer";
    return error;
  }
  if (Status status = check.finish(results); !status.isOk())
    return entry.emitOpError() << status.message();
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
  SmallVector<program::EntryOp> entries(module.getOps<program::EntryOp>());
  return failableParallelForEach(
      module.getContext(), entries,
      [](program::EntryOp entry) { return CommandVerifier().run(entry); });
}

void VerifyPhasePass::runOnOperation() {
  ModuleOp module = getOperation();
  if (failed(verify(module)))
    return signalPassFailure();
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
