// SPDX-License-Identifier: MIT

// Splits a row region into column loops.

#include "compiler/Codegen/RowPlan.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace {

class RowPlanner {
public:
  RowPlanner(Block &body, int64_t columns) : body(body), columns(columns) {}

  RowPlan run();

private:
  unsigned levelOf(Value value);
  void collectSums(Value value, DenseSet<Value> &seen);
  void evaluate(Value value, unsigned loop, DenseSet<Value> &seen);

  Block &body;
  int64_t columns;
  RowPlan plan;
  DenseMap<Value, unsigned> levels;
  DenseMap<Value, unsigned> firstLoop; ///< that evaluates an expensive value
};

} // namespace

/// Worth an array: costs more than a store and a load.
static bool isExpensive(Operation *op) {
  return isa<math::ExpOp, math::SqrtOp, math::RsqrtOp, math::SinOp,
             math::CosOp, arith::DivFOp, RowRandomOp, RowSigmoidOp>(op);
}

/// The number of reductions that follow each other up to `value`.
unsigned RowPlanner::levelOf(Value value) {
  if (auto known = levels.find(value); known != levels.end())
    return known->second;
  unsigned level = 0;
  if (Operation *op = value.getDefiningOp()) {
    for (Value operand : op->getOperands())
      level = std::max(level, levelOf(operand));
    if (isa<RowSumOp>(op))
      ++level;
  }
  return levels[value] = level;
}

void RowPlanner::collectSums(Value value, DenseSet<Value> &seen) {
  Operation *op = value.getDefiningOp();
  if (!op || !seen.insert(value).second)
    return;
  for (Value operand : op->getOperands())
    collectSums(operand, seen);
  if (auto sum = dyn_cast<RowSumOp>(op)) {
    unsigned level = levelOf(sum.getRow());
    if (plan.loops.size() <= level)
      plan.loops.resize(level + 1);
    plan.loops[level].sums.push_back(sum);
  }
}

/// Walks what loop number `loop` computes for `value`, up to arrays that an
/// earlier loop has filled.
void RowPlanner::evaluate(Value value, unsigned loop, DenseSet<Value> &seen) {
  Operation *op = value.getDefiningOp();
  if (!op || !isRow(value) || !seen.insert(value).second)
    return;
  if (isExpensive(op) && columns <= kMaxKeptColumns) {
    unsigned first = firstLoop.try_emplace(value, loop).first->second;
    if (first < loop) {
      plan.kept.insert({value, first});
      return;
    }
  }
  if (isa<RowRotateOp>(op))
    plan.loops[loop].isPaired = true;
  for (Value operand : op->getOperands())
    evaluate(operand, loop, seen);
}

RowPlan RowPlanner::run() {
  OperandRange results = body.getTerminator()->getOperands();
  DenseSet<Value> seen;
  for (Value result : results)
    collectSums(result, seen);
  plan.loops.emplace_back();
  for (unsigned loop = 0; loop < plan.loops.size(); ++loop) {
    DenseSet<Value> evaluated;
    for (RowSumOp sum : plan.loops[loop].sums)
      evaluate(sum.getRow(), loop, evaluated);
    if (loop + 1 == plan.loops.size())
      for (Value result : results)
        evaluate(result, loop, evaluated);
  }
  return std::move(plan);
}

RowPlan qlora::planRows(Block &body, int64_t columns) {
  return RowPlanner(body, columns).run();
}
