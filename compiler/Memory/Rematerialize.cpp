// SPDX-License-Identifier: MIT

// rematerialize: keeps forward values that the backward reads, or recomputes
// them just before the read.
//
//   %n  = model.rms_norm %x, %w
//   ...
//   %da = train.linear_weight_grad %dy, %n      {phase = backward}
//
// becomes, if keeping %n is too expensive,
//
//   %n  = model.rms_norm %x, %w                 // dies in the forward
//   ...
//   %n2 = model.rms_norm %x, %w                 {phase = recomputed}
//   %da = train.linear_weight_grad %dy, %n2     {phase = backward}
//
// Support/RecomputePlanner.h decides which values are kept. If memory is short,
// an op may be recomputed for several blocks, with one clone each. A recomputed
// op gives the same bits: dropout's random numbers depend only on positions.

#include "compiler/Memory/StepProblem.h"
#include "compiler/Optimize/OpCost.h"
#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"

#include "mlir/IR/IRMapping.h"
#include "mlir/IR/Remarks.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

namespace qlora {
#define GEN_PASS_DEF_REMATERIALIZE
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

/// The planner's decision for the step.
struct Decision {
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
  Decision decide(const DeviceProfile &device);
  DictionaryAttr factsOf(const Decision &decision);
  void remark(const Decision &decision);
  StringRef policy() const {
    return blocks ? "blocks" : budget ? "budget" : "keep";
  }
};

} // namespace

Decision RematerializePass::decide(const DeviceProfile &device) {
  Decision decision;
  decision.described = buildStepProblem(getOperation(), device);
  const RecomputeProblem &problem = decision.described.problem;
  decision.plan = planWithoutRecompute(problem);
  decision.peakOfAllKept = decision.plan.peakBytes;
  if (blocks)
    decision.plan = planBlocks(problem, budget);
  else if (budget)
    decision.plan = planRecompute(problem, budget);
  return decision;
}

/// Redirects the operands of `op` to the latest clones.
static void readClones(Operation *op, const IRMapping &clones) {
  for (OpOperand &operand : op->getOpOperands())
    operand.set(clones.lookupOrDefault(operand.get()));
}

/// Makes later ops read a value fetched from the host instead of a clone.
static void readFetched(ResultRange originals,
                        const DenseMap<Value, Value> &fetched,
                        IRMapping &latest) {
  for (Value original : originals)
    if (Value value = fetched.lookup(original))
      latest.map(original, value);
}

/// Inserts clones of recomputed ops before their readers, and redirects the
/// backward to them.
static void apply(const Decision &decision) {
  ArrayRef<Operation *> ops = decision.described.ops;
  unsigned forwardOps = decision.described.forwardOps;
  std::vector<SmallVector<unsigned>> clonesBefore(ops.size());
  for (unsigned i = 0; i < forwardOps; ++i)
    for (unsigned before : decision.plan.before[i])
      clonesBefore[before].push_back(i);
  IRMapping latest;
  DenseMap<Value, Value> fetched;
  for (unsigned reader = forwardOps; reader < ops.size(); ++reader) {
    OpBuilder builder(ops[reader]);
    for (unsigned i : clonesBefore[reader]) {
      setPhase(builder.clone(*ops[i], latest), StepPhase::Recomputed);
      readFetched(ops[i]->getResults(), fetched, latest);
    }
    readClones(ops[reader], latest);
    if (auto fetch = dyn_cast<CopyFromHostOp>(ops[reader])) {
      fetched[fetch.getOriginal()] = fetch;
      latest.map(fetch.getOriginal(), fetch.getResult());
    }
  }
  // Forward ops that only the backward read are now replaced by clones.
  for (Operation *op : llvm::reverse(ops.take_front(forwardOps)))
    if (isOpTriviallyDead(op))
      op->erase();
}

//===----------------------------------------------------------------------===//
// Report
//===----------------------------------------------------------------------===//

void RematerializePass::remark(const Decision &decision) {
  for (auto [op, before] :
       llvm::zip(decision.described.ops, decision.plan.before))
    for (unsigned reader : before)
      if (!isView(op))
        remark::passed(op->getLoc(), remark::RemarkOpts::name("recomputed")
                                         .category(getArgument()))
            << remark::add("recomputed before the backward of {0}, saves {1} "
                           "bytes",
                           labelOf(decision.described.ops[reader]),
                           resultBytes(op));
  bool fits = !budget || int64_t(decision.plan.peakBytes) <= budget;
  remark::analysis(getOperation().getLoc(),
                   remark::RemarkOpts::name("peak").category(getArgument()))
      << remark::add("estimated peak of {0} bytes, {1} less than without "
                     "recomputing, for {2:F1} us{3}",
                     decision.plan.peakBytes,
                     decision.peakOfAllKept - decision.plan.peakBytes,
                     decision.plan.seconds * 1e6,
                     fits ? "" : "; no plan within the budget was found");
}

/// Returns metadata of the policy, its budget and the recomputed ops.
DictionaryAttr RematerializePass::factsOf(const Decision &decision) {
  SmallVector<Attribute> recomputed;
  for (auto [i, op] : llvm::enumerate(decision.described.ops))
    if (size_t times = decision.plan.before[i].size(); times && !isView(op)) {
      ++opsRecomputed;
      recomputed.push_back(
          MetadataBuilder(&getContext())
              .add("of", labelOf(op))
              .add("op", op->getName().getStringRef())
              .add("block", layerOf(op))
              .add("bytes", resultBytes(op))
              .add("seconds", decision.described.problem.ops[i].seconds)
              .add("times", times)
              .get());
    }
  MetadataBuilder facts(&getContext());
  facts.add("policy", policy())
      .add("budget", budget.getValue())
      .add("batch", getOperation().getBatch())
      .add("length", getOperation().getLength())
      .add("peak_of_all_kept", decision.peakOfAllKept)
      .add("estimated_peak", decision.plan.peakBytes)
      .add("recompute_seconds", decision.plan.seconds)
      .add("recomputed", recomputed);
  if (problem)
    addProblem(decision.described, decision.plan, facts);
  return facts.get();
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
  if (getOperation().getKind() != StepKind::Accumulate)
    return;
  const Decision decision = decide(*device);
  recordDecision(getOperation(), getArgument(), factsOf(decision));
  remark(decision);
  apply(decision);
}
