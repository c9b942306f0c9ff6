// SPDX-License-Identifier: MIT

// Splits a row region into column loops.

#include "compiler/Codegen/RowPlan.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace {

class RowPlanner {
public:
  RowPlanner(Block &body, int64_t maxArrays, bool areQuick)
      : body(body), maxArrays(maxArrays), areQuick(areQuick) {}

  RowPlan run();

private:
  unsigned levelOf(Value value);
  void collectReductions(Value value, DenseSet<Value> &seen);
  void evaluate(Value value, unsigned loop, DenseSet<Value> &seen);
  bool keep(Value value, unsigned loop);
  bool isExpensive(Operation *op) const;

  Block &body;
  int64_t maxArrays;
  bool areQuick;
  RowPlan plan;
  DenseMap<Value, unsigned> levels;
  DenseMap<Value, unsigned> firstLoop; ///< per expensive value
};

} // namespace

/// True if computing the op costs more than storing and loading its result.
bool RowPlanner::isExpensive(Operation *op) const {
  if (isa<math::RsqrtOp, RowRandomOp, RowSigmoidOp>(op))
    return !areQuick;
  return isa<math::ExpOp, math::LogOp, math::TanhOp, math::ErfOp, math::SqrtOp,
             math::SinOp, math::CosOp, arith::DivFOp>(op);
}

/// Returns the length of the longest chain of reductions up to `value`.
unsigned RowPlanner::levelOf(Value value) {
  if (auto known = levels.find(value); known != levels.end())
    return known->second;
  unsigned level = 0;
  if (Operation *op = value.getDefiningOp()) {
    for (Value operand : op->getOperands())
      level = std::max(level, levelOf(operand));
    if (op->hasTrait<RowReduction>())
      ++level;
  }
  return levels[value] = level;
}

void RowPlanner::collectReductions(Value value, DenseSet<Value> &seen) {
  Operation *op = value.getDefiningOp();
  if (!op || !seen.insert(value).second)
    return;
  for (Value operand : op->getOperands())
    collectReductions(operand, seen);
  if (op->hasTrait<RowReduction>()) {
    unsigned level = levelOf(op->getOperand(0));
    if (plan.loops.size() <= level)
      plan.loops.resize(level + 1);
    plan.loops[level].reductions.push_back(op);
  }
}

/// Stores `value` in an array if an earlier loop has evaluated it and an array
/// is free. Returns whether `value` is in an array.
bool RowPlanner::keep(Value value, unsigned loop) {
  unsigned first = firstLoop.try_emplace(value, loop).first->second;
  if (first == loop)
    return false;
  if (plan.kept.contains(value))
    return true;
  if (static_cast<int64_t>(plan.kept.size()) >= maxArrays)
    return false;
  return plan.kept.insert({value, first}), true;
}

/// Walks the ops that loop number `loop` computes for `value`, down to arrays
/// that an earlier loop has filled.
void RowPlanner::evaluate(Value value, unsigned loop, DenseSet<Value> &seen) {
  Operation *op = value.getDefiningOp();
  if (!op || !isRow(value) || !seen.insert(value).second)
    return;
  if (isExpensive(op) && keep(value, loop))
    return;
  if (auto rotate = dyn_cast<RowRotateOp>(op))
    plan.loops[loop].turned = rotate.getTurned();
  for (Value operand : op->getOperands())
    evaluate(operand, loop, seen);
}

RowPlan RowPlanner::run() {
  OperandRange results = body.getTerminator()->getOperands();
  DenseSet<Value> seen;
  for (Value result : results)
    collectReductions(result, seen);
  plan.loops.emplace_back();
  for (unsigned loop = 0; loop < plan.loops.size(); ++loop) {
    DenseSet<Value> evaluated;
    for (Operation *reduction : plan.loops[loop].reductions)
      evaluate(reduction->getOperand(0), loop, evaluated);
    if (loop + 1 == plan.loops.size())
      for (Value result : results)
        evaluate(result, loop, evaluated);
  }
  return std::move(plan);
}

RowPlan qlora::planRows(Block &body, int64_t maxArrays, bool areQuick) {
  return RowPlanner(body, maxArrays, areQuick).run();
}
