// SPDX-License-Identifier: MIT

// Describes a train.step to the recompute planner (StepProblem.h).

#include "compiler/Graph/StepProblem.h"

#include "compiler/Graph/Accumulate.h"
#include "compiler/Graph/OpCost.h"
#include "compiler/Graph/Overwrite.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

namespace {

class ProblemBuilder {
public:
  explicit ProblemBuilder(const DeviceProfile &device) : device(device) {}

  StepProblem run(StepOp step);

private:
  void addOp(Operation *op, bool isBackward);
  void addViews(Operation *op);
  uint32_t lookup(Value value) const {
    auto known = numbers.find(value);
    return known == numbers.end() ? kNoValue : known->second;
  }

  const DeviceProfile &device;
  StepProblem result;
  DenseMap<Value, uint32_t> numbers;
};

} // namespace

/// Parts share the memory of their whole. A concat in the forward copies, so
/// that what it reads can be dropped by itself.
void ProblemBuilder::addViews(Operation *op) {
  auto view = dyn_cast<ViewOp>(op);
  if (!view)
    return;
  RecomputeOp &entry = result.problem.ops.back();
  uint32_t whole = lookup(view.getWhole());
  bool isSplit = view.getWhole().getDefiningOp() != op;
  entry.isView = isSplit && whole != kNoValue;
  if (!isSplit && !entry.isBackward) {
    double bytes =
        tensorBytes(cast<RankedTensorType>(view.getWhole().getType()));
    entry.seconds = secondsOf(rowWork(2 * bytes, 0), device);
    return;
  }
  for (Value part : view.getViewParts()) {
    uint32_t number = lookup(part);
    Operation *maker = part.getDefiningOp();
    bool isPlaced = isSplit || (part.hasOneUse() && maker &&
                                isa<LibraryOp, RowOp>(maker) &&
                                maker->hasAttr(kBackwardAttr));
    if (number != kNoValue && whole != kNoValue && isPlaced)
      result.problem.values[number].partOf = whole;
  }
}

void ProblemBuilder::addOp(Operation *op, bool isBackward) {
  RecomputeOp entry;
  entry.isBackward = isBackward;
  entry.block = blockOf(op);
  for (Value operand : op->getOperands())
    if (uint32_t number = lookup(operand); number != kNoValue)
      entry.inputs.push_back(number);
  if (isa<RowOp, LibraryOp, ViewOp>(op))
    for (Value value : op->getResults()) {
      RecomputeValue described;
      if (!isAddedInPlace(value))
        described.bytes =
            tensorBytes(cast<RankedTensorType>(value.getType()));
      numbers[value] = result.problem.values.size();
      entry.outputs.push_back(result.problem.values.size());
      result.problem.values.push_back(described);
    }
  if (!isBackward)
    entry.seconds = secondsOf(op, device);
  for (auto [operand, result] : overwritesOf(op))
    if (lookup(operand) != kNoValue && lookup(result) != kNoValue)
      entry.ties.push_back({lookup(operand), lookup(result)});
  result.problem.ops.push_back(std::move(entry));
  result.ops.push_back(op);
  addViews(op);
}

StepProblem ProblemBuilder::run(StepOp step) {
  bool isBackward = false;
  for (Operation &op : step.getBody().front()) {
    if (isa<WeightOp>(op))
      continue;
    isBackward |= op.hasAttr(kBackwardAttr);
    addOp(&op, isBackward);
    result.forwardOps += !isBackward;
  }
  return std::move(result);
}

StepProblem qlora::buildStepProblem(StepOp step,
                                    const DeviceProfile &device) {
  return ProblemBuilder(device).run(step);
}

void qlora::writeProblem(const StepProblem &described,
                         const RecomputePlan &plan,
                         llvm::json::OStream &json) {
  auto writeNumbers = [&](StringRef key, const std::vector<uint32_t> &list) {
    json.attributeArray(key, [&] {
      for (uint32_t number : list)
        json.value(number);
    });
  };
  auto writePair = [&](int64_t first, int64_t second) {
    json.array([&] {
      json.value(first);
      json.value(second);
    });
  };
  json.attributeArray("values", [&] {
    for (const RecomputeValue &value : described.problem.values)
      writePair(value.bytes,
                value.partOf == kNoValue ? -1 : int64_t(value.partOf));
  });
  auto writeOp = [&](size_t i) {
    const RecomputeOp &op = described.problem.ops[i];
    json.attribute("op", described.ops[i]->getName().getStringRef());
    json.attribute("of", labelOf(described.ops[i]));
    json.attribute("block", op.block);
    json.attribute("backward", op.isBackward);
    json.attribute("view", op.isView);
    json.attribute("seconds", op.seconds);
    writeNumbers("inputs", op.inputs);
    writeNumbers("outputs", op.outputs);
    json.attributeArray("ties", [&] {
      for (RecomputeOp::Tie tie : op.ties)
        writePair(tie.input, tie.output);
    });
    writeNumbers("before", plan.before[i]);
  };
  json.attributeArray("ops", [&] {
    for (size_t i = 0; i < described.ops.size(); ++i)
      json.object([&] { writeOp(i); });
  });
}

DenseMap<Operation *, unsigned> qlora::zonesOf(StepOp step) {
  DenseMap<Operation *, unsigned> zones;
  SmallVector<Operation *> recomputed;
  unsigned zone = 0;
  int64_t block = -1;
  for (Operation &op : step.getBody().front()) {
    recomputed.push_back(&op);
    if (op.hasAttr(kRecomputedAttr))
      continue;
    bool isInBlock = op.hasAttr(kBackwardAttr) && blockOf(&op) >= 0;
    if (isInBlock && blockOf(&op) != block) {
      block = blockOf(&op);
      ++zone;
    }
    while (!recomputed.empty())
      zones[recomputed.pop_back_val()] = zone;
  }
  return zones;
}
