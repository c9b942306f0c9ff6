// SPDX-License-Identifier: MIT

// rematerialize: forward values that the backward reads are kept, or computed
// again just before it reads them.
//
//   %n  = model.rms_norm %x, %w
//   ...
//   %da = train.linear_weight_grad %dy, %n      {phase = backward}
//
// becomes, where keeping %n is too dear,
//
//   %n  = model.rms_norm %x, %w                 // dies in the forward
//   ...
//   %n2 = model.rms_norm %x, %w                 {phase = recomputed}
//   %da = train.linear_weight_grad %dy, %n2     {phase = backward}
//
// Which ones is decided by Support/RecomputePlanner.h; where memory is short,
// an op may be computed again for several blocks, each with a clone of its own.
// A recomputed op gives the same bits: dropout's random numbers are a function
// of their position.

#include "compiler/Graph/OpCost.h"
#include "compiler/Graph/StepProblem.h"
#include "compiler/Passes.h"

#include "mlir/IR/IRMapping.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

namespace qlora {
#define GEN_PASS_DEF_REMATERIALIZE
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

/// What was decided for one step.
struct Decision {
  StepOp step;
  StepProblem described;
  RecomputePlan plan;
  uint64_t peakOfAllKept = 0;
};

class RematerializePass
    : public qlora::impl::RematerializeBase<RematerializePass> {
public:
  using RematerializeBase::RematerializeBase;

private:
  void runOnOperation() override;
  Decision decide(StepOp step, const DeviceProfile &device) const;
  void report(ArrayRef<Decision> decisions);
  void remark(const Decision &decision) const;
  StringRef policy() const {
    return blocks ? "blocks" : budget ? "budget" : "keep";
  }
};

} // namespace

Decision RematerializePass::decide(StepOp step,
                                   const DeviceProfile &device) const {
  Decision decision;
  decision.step = step;
  decision.described = buildStepProblem(step, device);
  const RecomputeProblem &problem = decision.described.problem;
  decision.plan = planWithoutRecompute(problem);
  decision.peakOfAllKept = decision.plan.peakBytes;
  if (blocks)
    decision.plan = planBlocks(problem, budget);
  else if (budget)
    decision.plan = planRecompute(problem, budget);
  return decision;
}

/// Bytes of all that an op makes.
static int64_t resultBytes(Operation *op) {
  int64_t bytes = 0;
  for (Type type : op->getResultTypes())
    bytes += tensorBytes(cast<RankedTensorType>(type));
  return bytes;
}

/// Lets `op` read the latest clones.
static void readClones(Operation *op, const IRMapping &clones) {
  for (OpOperand &operand : op->getOpOperands())
    operand.set(clones.lookupOrDefault(operand.get()));
}

/// Clones what is recomputed before its readers, and lets the backward read
/// the clones.
static void apply(const Decision &decision) {
  ArrayRef<Operation *> ops = decision.described.ops;
  unsigned forwardOps = decision.described.forwardOps;
  std::vector<SmallVector<unsigned>> clonesBefore(ops.size());
  for (unsigned i = 0; i < forwardOps; ++i)
    for (unsigned before : decision.plan.before[i])
      clonesBefore[before].push_back(i);
  IRMapping latest;
  for (unsigned reader = forwardOps; reader < ops.size(); ++reader) {
    OpBuilder builder(ops[reader]);
    for (unsigned i : clonesBefore[reader])
      setPhase(builder.clone(*ops[i], latest), StepPhase::Recomputed);
    readClones(ops[reader], latest);
  }
  // What only the backward read is now computed there alone.
  for (Operation *op : llvm::reverse(ops.take_front(forwardOps)))
    if (isOpTriviallyDead(op))
      op->erase();
}

//===----------------------------------------------------------------------===//
// Report
//===----------------------------------------------------------------------===//

void RematerializePass::remark(const Decision &decision) const {
  StepOp step = decision.step;
  for (auto [op, before] :
       llvm::zip(decision.described.ops, decision.plan.before))
    for (unsigned reader : before)
      if (!isView(op))
        op->emitRemark("rematerialize: recomputed before the backward of ")
            << labelOf(decision.described.ops[reader]) << ", "
            << resultBytes(op) << " bytes are not kept";
  bool fits = !budget || int64_t(decision.plan.peakBytes) <= budget;
  step.emitRemark("rematerialize: estimated peak of ")
      << decision.plan.peakBytes << " bytes, "
      << decision.peakOfAllKept - decision.plan.peakBytes
      << " less than with everything kept, for "
      << llvm::formatv("{0:F1}", decision.plan.seconds * 1e6).str() << " us"
      << (fits ? "" : "; no plan within the budget was found");
}

/// `train.remat`: the policy, its numbers, and what is computed again.
void RematerializePass::report(ArrayRef<Decision> decisions) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  llvm::json::OStream json(stream);
  uint64_t peak = 0;
  double seconds = 0;
  for (const Decision &decision : decisions) {
    peak = std::max(peak, decision.plan.peakBytes);
    seconds = std::max(seconds, decision.plan.seconds);
  }
  auto writeOp = [&](Operation *op, double opSeconds) {
    json.attribute("of", labelOf(op));
    json.attribute("op", op->getName().getStringRef());
    json.attribute("block", layerOf(op));
    json.attribute("bytes", resultBytes(op));
    json.attribute("seconds", opSeconds);
  };
  auto writeStep = [&](const Decision &decision) {
    StepOp step = decision.step;
    json.attribute("batch", static_cast<int64_t>(step.getBatch()));
    json.attribute("length", static_cast<int64_t>(step.getLength()));
    json.attribute("peak_of_all_kept", decision.peakOfAllKept);
    json.attribute("estimated_peak", decision.plan.peakBytes);
    json.attribute("recompute_seconds", decision.plan.seconds);
    json.attributeArray("recomputed", [&] {
      for (auto [i, op] : llvm::enumerate(decision.described.ops))
        if (size_t times = decision.plan.before[i].size();
            times && !isView(op))
          json.object([&] {
            writeOp(op, decision.described.problem.ops[i].seconds);
            json.attribute("times", static_cast<int64_t>(times));
          });
    });
    if (problem)
      writeProblem(decision.described, decision.plan, json);
  };
  json.object([&] {
    json.attribute("policy", policy());
    json.attribute("budget", static_cast<int64_t>(budget));
    json.attribute("estimated_peak", peak);
    json.attribute("recompute_seconds", seconds);
    json.attributeArray("steps", [&] {
      for (const Decision &decision : decisions)
        json.object([&] { writeStep(decision); });
    });
  });
  getOperation()->setAttr("train.remat", StringAttr::get(&getContext(), text));
}

void RematerializePass::runOnOperation() {
  if (budget < 0) {
    getOperation().emitError("expects a budget of 0 or more bytes, but got ")
        << int64_t(budget);
    return signalPassFailure();
  }
  StatusOr<DeviceProfile> device = deviceProfileOrDefault(profile, target);
  if (!device.isOk()) {
    getOperation().emitError(device.status().message());
    return signalPassFailure();
  }
  SmallVector<Decision> decisions;
  for (auto step : getOperation().getOps<StepOp>())
    if (step.getKind() == StepKind::Accumulate)
      decisions.push_back(decide(step, *device));
  report(decisions);
  for (const Decision &decision : decisions) {
    if (remarks)
      remark(decision);
    apply(decision);
  }
}
