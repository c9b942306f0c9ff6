// SPDX-License-Identifier: MIT

// The derivative rule of all row ops: the reverse of their region
// (RowGradient.cpp), as another row op.

#include "dialects/Model/Arithmetic.h"
#include "dialects/Train/Train.h"

using namespace mlir;
using namespace qlora::model;
using namespace qlora::train;

/// Returns a gradient of zero inside a row region.
static Value zeroRow(OpBuilder &b, Location loc, int64_t columns) {
  Value zero = arith::ConstantOp::create(b, loc, b.getF32FloatAttr(0));
  return RowSplatOp::create(
      b, loc, RankedTensorType::get({columns}, b.getF32Type()), zero);
}

/// Builds a gradient of zero as a row op without inputs.
Value qlora::train::buildZeros(OpBuilder &b, Location loc,
                               RankedTensorType type) {
  return buildRows(b, loc, {type}, {}, matrixColumns(type), {}, "zero",
                   [&](OpBuilder &inner, ValueRange) -> SmallVector<Value> {
                     return {zeroRow(inner, loc, matrixColumns(type))};
                   })
      ->getResult(0);
}

/// Returns whether each row reads a separate number, not shared with others.
static bool isRowNumber(MapAttr map) {
  return map.getKind() == MapKind::Scalar && map.getGroup() == 1;
}

/// Returns the indices of operands that need a gradient. Emits an error if such
/// an operand cannot have one. Operands with one number per row come last,
/// because the first result of the reversed op must be a row.
static FailureOr<SmallVector<unsigned>> wantedOperands(RowOp op, Tape &tape) {
  SmallVector<unsigned> wanted, numbers;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    if (!tape.needs(operand))
      continue;
    MapAttr map = op.getRowMaps()[i];
    MapKind kind = map.getKind();
    if (kind != MapKind::Full && kind != MapKind::Column && !isRowNumber(map))
      return op->emitOpError("cannot be differentiated with respect to "
                             "operand ")
             << i << ", which every row reads as '" << stringifyMapKind(kind)
             << "'";
    if (!isFloatStorable(operand.getType()))
      return op->emitOpError("cannot be differentiated with respect to "
                             "operand ")
             << i << ", which holds integers: " << operand.getType();
    (isRowNumber(map) ? numbers : wanted).push_back(i);
  }
  if (wanted.empty() && !numbers.empty())
    for (auto [i, map] : llvm::enumerate(op.getRowMaps()))
      if (wanted.empty() && map.getKind() == MapKind::Full)
        wanted.push_back(i);
  wanted.append(numbers);
  return wanted;
}

/// Builds the gradients of operands `wanted`, from the op's operands and
/// `flowing`, the gradients of its results (null: none).
static FailureOr<Operation *> buildReversedRows(RowOp op,
                                                ArrayRef<unsigned> wanted,
                                                ArrayRef<Value> flowing,
                                                OpBuilder &b) {
  SmallVector<Value> inputs(op->getOperands());
  SmallVector<MapAttr> maps = op.getRowMaps();
  RankedTensorType full = tensorOf(op->getResult(0)).clone(b.getF32Type());
  SmallVector<Type> types =
      llvm::map_to_vector(wanted, [&](unsigned i) -> Type {
        return maps[i].getKind() == MapKind::Column
                   ? full
                   : op->getOperand(i).getType();
      });
  for (auto [i, gradient] : llvm::enumerate(flowing)) {
    if (!gradient)
      continue;
    inputs.push_back(gradient);
    maps.push_back(MapAttr::get(
        op->getContext(),
        op.isScalarResult(i) ? MapKind::Scalar : MapKind::Full, 1));
  }
  LogicalResult outcome = success();
  auto build = [&](OpBuilder &inner, ValueRange arguments) {
    ValueRange forward = arguments.take_front(op->getNumOperands());
    ValueRange left = arguments.drop_front(op->getNumOperands());
    SmallVector<Value> seeds(flowing);
    for (Value &seed : seeds)
      if (seed) {
        seed = left.front();
        left = left.drop_front();
      }
    auto rows = buildRowGradient(op, inner, forward, seeds);
    outcome = success(succeeded(rows));
    if (failed(rows))
      return SmallVector<Value>();
    return llvm::map_to_vector(wanted, [&](unsigned i) -> Value {
      if ((*rows)[i])
        return (*rows)[i];
      if (isRowNumber(op.getRowMaps()[i]))
        return arith::ConstantOp::create(inner, op.getLoc(),
                                         inner.getF32FloatAttr(0));
      return zeroRow(inner, op.getLoc(), op.getRowColumns());
    });
  };
  std::string label = (op->getName().stripDialect() + "_grad").str();
  Operation *rows = buildRows(b, op.getLoc(), types, inputs, op.getRowColumns(),
                              maps, label, build);
  return failed(outcome) ? FailureOr<Operation *>() : rows;
}

LogicalResult qlora::train::buildRowsGradient(RowOp op, Tape &tape) {
  FailureOr<SmallVector<unsigned>> wanted = wantedOperands(op, tape);
  if (failed(wanted))
    return failure();
  SmallVector<Value> flowing = llvm::map_to_vector(
      op->getResults(), [&](Value result) { return tape.lookup(result); });
  if (wanted->empty() || !llvm::any_of(flowing, [](Value v) { return !!v; }))
    return success();
  OpBuilder &b = tape.getBuilder();
  FailureOr<Operation *> rows = buildReversedRows(op, *wanted, flowing, b);
  if (failed(rows))
    return failure();
  eraseDeadArithmetic(cast<RowsOp>(*rows));
  SmallVector<Value> gradients = simplifyRows(cast<RowsOp>(*rows));
  for (auto [i, gradient] : llvm::zip_equal(*wanted, gradients)) {
    Value operand = op->getOperand(i);
    if (op.getRowMaps()[i].getKind() == MapKind::Column)
      gradient = ColumnSumOp::create(
          b, op.getLoc(), tensorOf(operand).clone(b.getF32Type()), gradient);
    tape.add(operand, gradient);
  }
  return success();
}
