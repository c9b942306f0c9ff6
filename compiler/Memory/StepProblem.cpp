// SPDX-License-Identifier: MIT

// Describes a train.step to the recompute planner (StepProblem.h).

#include "compiler/Memory/StepProblem.h"

#include "compiler/Memory/StepMemory.h"
#include "compiler/Optimize/OpCost.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

namespace {

class ProblemBuilder {
public:
  ProblemBuilder(StepOp step, const DeviceProfile &device)
      : step(step), device(device), memory(step) {}

  StepProblem run();

private:
  void addOp(Operation *op);
  double secondsOfCopies(Operation *op) const;
  uint32_t lookup(Value value) const {
    auto known = numbers.find(value);
    return known == numbers.end() ? kNoValue : known->second;
  }

  StepOp step;
  const DeviceProfile &device;
  StepMemory memory;
  StepProblem result;
  DenseMap<Value, uint32_t> numbers;
};

} // namespace

/// Returns the seconds that a view takes to copy values not made in place.
double ProblemBuilder::secondsOfCopies(Operation *op) const {
  double bytes = 0;
  for (const MemoryRange &part : cast<MemoryOp>(op).getMemoryRanges())
    if (memory.wholeOf(part.part) != memory.wholeOf(part.whole))
      bytes += tensorBytes(cast<RankedTensorType>(part.part.getType()));
  return bytes ? secondsOf(rowWork(2 * bytes, 0), device) : 0;
}

void ProblemBuilder::addOp(Operation *op) {
  RecomputeOp entry;
  entry.isBackward = isBackward(op);
  entry.block = layerOf(op);
  for (Value operand : op->getOperands())
    if (uint32_t number = lookup(operand); number != kNoValue)
      entry.inputs.push_back(number);
  for (Value value : op->getResults()) {
    if (isa<CopyToHostOp>(op))
      continue; // takes no memory of the step and is never recomputed
    RecomputeValue described;
    if (!memory.rootOf(value).outside)
      described.bytes = tensorBytes(cast<RankedTensorType>(value.getType()));
    numbers[value] = result.problem.values.size();
    entry.outputs.push_back(result.problem.values.size());
    result.problem.values.push_back(described);
  }
  if (!entry.isBackward)
    entry.seconds = isView(op) ? secondsOfCopies(op) : secondsOf(op, device);
  // True for views without copies: all results are ranges of a larger value.
  entry.isView = !entry.inputs.empty() && isView(op) &&
                 llvm::all_of(op->getResults(), [&](Value value) {
                   return memory.wholeOf(value) != value;
                 });
  for (const MemoryTie &tie : memory.tiesOf(op))
    if (lookup(tie.operand->get()) != kNoValue)
      entry.ties.push_back({lookup(tie.operand->get()), lookup(tie.result)});
  if (auto fetch = dyn_cast<CopyFromHostOp>(op))
    entry.standsFor = lookup(fetch.getOriginal());
  result.problem.ops.push_back(std::move(entry));
  result.ops.push_back(op);
}

StepProblem ProblemBuilder::run() {
  for (Operation &op : step.getBody().front()) {
    // Skip forward ops without operands, such as weights.
    if (op.getNumOperands() == 0 && !isBackward(&op))
      continue;
    addOp(&op);
    result.forwardOps += !isBackward(&op);
  }
  for (auto [value, number] : numbers)
    if (Value whole = memory.wholeOf(value); whole != value)
      result.problem.values[number].partOf = lookup(whole);
  return std::move(result);
}

StepProblem qlora::buildStepProblem(StepOp step, const DeviceProfile &device) {
  return ProblemBuilder(step, device).run();
}

void qlora::addProblem(const StepProblem &described, const RecomputePlan &plan,
                       MetadataBuilder &facts) {
  MLIRContext *context = described.ops.front()->getContext();
  Builder builder(context);
  auto numbers = [&](const std::vector<uint32_t> &list) -> Attribute {
    return builder.getDenseI64ArrayAttr(llvm::to_vector_of<int64_t>(list));
  };
  auto pair = [&](int64_t first, int64_t second) -> Attribute {
    return builder.getDenseI64ArrayAttr({first, second});
  };
  SmallVector<Attribute> values, ops;
  for (const RecomputeValue &value : described.problem.values)
    values.push_back(pair(
        value.bytes, value.partOf == kNoValue ? -1 : int64_t(value.partOf)));
  for (auto [op, entry, before] :
       llvm::zip_equal(described.ops, described.problem.ops, plan.before)) {
    SmallVector<Attribute> ties;
    for (RecomputeOp::Tie tie : entry.ties)
      ties.push_back(pair(tie.input, tie.output));
    ops.push_back(MetadataBuilder(context)
                      .add("op", op->getName().getStringRef())
                      .add("of", labelOf(op))
                      .add("block", entry.block)
                      .add("backward", entry.isBackward)
                      .add("view", entry.isView)
                      .add("seconds", entry.seconds)
                      .add("inputs", numbers(entry.inputs))
                      .add("outputs", numbers(entry.outputs))
                      .add("ties", ties)
                      .add("before", numbers(before))
                      .add("stands_for", entry.standsFor == kNoValue
                                             ? -1
                                             : int64_t(entry.standsFor))
                      .get());
  }
  facts.add("values", values).add("ops", ops);
}

StepZones qlora::zonesOf(StepOp step) {
  StepZones zones;
  SmallVector<Operation *> recomputed;
  ZoneCounter counter;
  for (Operation &op : step.getBody().front()) {
    recomputed.push_back(&op);
    if (phaseOf(&op) == StepPhase::Recomputed)
      continue;
    unsigned zone = counter.enter(isBackward(&op), layerOf(&op));
    while (!recomputed.empty())
      zones[recomputed.pop_back_val()] = zone;
  }
  return zones;
}
