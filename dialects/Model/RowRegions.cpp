// SPDX-License-Identifier: MIT

// Verifiers of model.rows (arithmetic as a region) and of RowOp, and functions
// that build and simplify such regions.

#include "dialects/Model/Model.h"

#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace qlora::model;

int64_t RowsOp::getRowColumns() { return getColumns(); }

SmallVector<MapAttr> RowsOp::getRowMaps() {
  return llvm::to_vector(getMaps().getAsRange<MapAttr>());
}

SmallVector<Value> RowsOp::buildRow(OpBuilder &builder, ValueRange arguments) {
  IRMapping mapping;
  mapping.map(getBody().getArguments(), arguments);
  Block &block = getBody().front();
  for (Operation &op : block.without_terminator())
    builder.clone(op, mapping);
  return llvm::map_to_vector(
      block.getTerminator()->getOperands(),
      [&](Value value) { return mapping.lookup(value); });
}

bool RowsOp::isScalarResult(unsigned index) {
  Operation *yield = getBody().front().getTerminator();
  return yield->getOperand(index).getType().isF32();
}

/// Returns f32 if a row reads one number, else tensor<Cxf32>.
static Type argumentType(MLIRContext *context, MapKind kind, int64_t columns) {
  Type number = Float32Type::get(context);
  if (kind == MapKind::Scalar || kind == MapKind::Global)
    return number;
  return RankedTensorType::get({columns}, number);
}

/// Returns whether `text` can be a label, which becomes a C++ kernel's name.
static bool isIdentifier(StringRef text) {
  return !text.empty() && !llvm::isDigit(text.front()) &&
         llvm::all_of(text,
                      [](char c) { return llvm::isAlnum(c) || c == '_'; });
}

/// Verifies (C4): all rows in the region have the same length.
static LogicalResult verifyRowLengths(RowsOp rows) {
  for (Operation &op : rows.getBody().front())
    for (Type type : op.getResultTypes())
      if (auto row = dyn_cast<RankedTensorType>(type);
          row && (row.getRank() != 1 ||
                  row.getDimSize(0) != static_cast<int64_t>(rows.getColumns())))
        return op.emitOpError("(C4) expects a row of ")
               << rows.getColumns() << " elements, but got " << row;
  return success();
}

LogicalResult RowsOp::verify() {
  Block &block = getBody().front();
  int64_t columns = getColumns();
  if (columns < 1)
    return emitOpError("(C3) expects at least 1 column, but got ") << columns;
  if (getMaps().size() != getInputs().size() ||
      block.getNumArguments() != getInputs().size())
    return emitOpError("(C1) expects one map and one argument per operand");
  for (auto [argument, attr] :
       llvm::zip_equal(block.getArguments(), getRowMaps()))
    if (argument.getType() !=
        argumentType(getContext(), attr.getKind(), columns))
      return emitOpError("(C1) argument ")
             << argument.getArgNumber() << " has type " << argument.getType();
  Type row = argumentType(getContext(), MapKind::Full, columns);
  Operation *yield = block.getTerminator();
  if (!getNumResults() || yield->getNumOperands() != getNumResults() ||
      yield->getOperand(0).getType() != row ||
      llvm::any_of(yield->getOperandTypes(),
                   [&](Type type) { return type != row && !type.isF32(); }))
    return emitOpError("(C2) expects one yielded ")
           << row << " per result, or f32 after the first, and a result";
  for (OpResult result : getResults())
    if (!isScalarResult(result.getResultNumber()) &&
        columnsOf(result) % columns)
      return emitOpError("(C3) expects widths that are multiples of ")
             << columns << ", but got " << columnsOf(result);
  if (getLabel() && !isIdentifier(*getLabel()))
    return emitOpError("(C5) expects an identifier as label, but got '")
           << *getLabel() << "'";
  return verifyRowLengths(*this);
}

LogicalResult RowRotateOp::verify() {
  int64_t width = getWidth(), all = getRow().getType().getDimSize(0);
  if (all % 2 || width < 0 || width % 2 || width > all)
    return emitOpError("(C1) expects an even number of elements, but got ")
           << width << " of " << getRow().getType();
  return success();
}

LogicalResult RowRoundOp::verify() {
  if (!getStored().isBF16() && !getStored().isF16())
    return emitOpError("(C1) expects bf16 or f16, but got ") << getStored();
  return success();
}

LogicalResult RowConstantOp::verify() {
  int64_t count = getValues().size();
  if (getResult().getType().getDimSize(0) != count)
    return emitOpError("(C1) expects as many numbers as elements, but got ")
           << count << " for " << getResult().getType();
  return success();
}

LogicalResult RowStepOp::verify() {
  static constexpr StringLiteral fields[] = {
      "learning_rate", "beta1",         "beta2",
      "epsilon",       "weight_decay",  "max_grad_norm",
      "bias_correction1", "bias_correction2_sqrt", "length_rsqrt",
      "one_minus_beta1", "one_minus_beta2", "update", "average", "mean_labels"};
  if (!llvm::is_contained(fields, getField()))
    return emitOpError("(C1) does not know the field '") << getField() << "'";
  return success();
}

/// Returns how many elements of `operand` are read, through `map`, by `rows`
/// rows of `columns` each; nullopt if rows or groups do not divide evenly.
static std::optional<int64_t> elementsRead(RankedTensorType operand,
                                           MapAttr map, int64_t rows,
                                           int64_t columns) {
  MapKind kind = map.getKind();
  int64_t width = matrixColumns(operand);
  if ((kind == MapKind::Full && width % columns) ||
      (kind == MapKind::Group && width != columns) ||
      (kind == MapKind::Column && operand.getRank() != 1))
    return std::nullopt;
  bool isGrouped = kind == MapKind::Scalar || kind == MapKind::Group;
  if (isGrouped && rows % map.getGroup())
    return std::nullopt;
  switch (kind) {
  case MapKind::Full:
    return rows * columns;
  case MapKind::Column:
    return columns;
  case MapKind::Scalar:
    return rows / map.getGroup();
  case MapKind::Group:
    return rows / map.getGroup() * columns;
  case MapKind::Global:
    return 1;
  }
  llvm_unreachable("all kinds are handled");
}

SmallVector<MapAttr> qlora::model::fullMaps(Operation *op) {
  return SmallVector<MapAttr>(
      op->getNumOperands(), MapAttr::get(op->getContext(), MapKind::Full, 1));
}

int64_t qlora::model::rowCount(Operation *rowOp) {
  auto first = cast<RankedTensorType>(rowOp->getResult(0).getType());
  return first.getNumElements() / cast<RowOp>(rowOp).getRowColumns();
}

/// Verifies what (R1) requires of results.
static LogicalResult verifyRowResults(RowOp op) {
  auto first = cast<RankedTensorType>(op->getResult(0).getType());
  if (op.isScalarResult(0))
    return op->emitOpError("(R1) expects rows as its first result");
  if (!first.hasStaticShape())
    return success();
  for (OpResult result : op->getResults()) {
    auto tensor = cast<RankedTensorType>(result.getType());
    bool isScalar = op.isScalarResult(result.getResultNumber());
    int64_t elements = isScalar ? rowCount(op) : first.getNumElements();
    if (tensor.hasStaticShape() && tensor.getNumElements() != elements)
      return op->emitOpError("(R1) expects results of one size, but got ")
             << first << " and " << tensor
             << (isScalar ? " for one number per row" : "");
  }
  return success();
}

LogicalResult qlora::model::verifyRowOp(Operation *op) {
  auto rowOp = cast<RowOp>(op);
  int64_t columns = rowOp.getRowColumns();
  if (failed(verifyRowResults(rowOp)))
    return failure();
  auto first = cast<RankedTensorType>(op->getResult(0).getType());
  if (!first.hasStaticShape())
    return success();
  int64_t rows = rowCount(op);
  for (auto [i, map] : llvm::enumerate(rowOp.getRowMaps())) {
    auto tensor = cast<RankedTensorType>(op->getOperand(i).getType());
    if (isa<QuantizedType>(tensor.getElementType()))
      return op->emitOpError("(R1) cannot read operand ")
             << i << ", which is quantized";
    if (tensor.hasStaticShape() &&
        elementsRead(tensor, map, rows, columns) != tensor.getNumElements())
      return op->emitOpError("(R1) operand ")
             << i << " is " << tensor << ", but " << rows << " rows of "
             << columns << " do not read all of it as " << map;
  }
  return success();
}

SmallVector<Value> qlora::model::simplifyRows(RowsOp rows) {
  Block &block = rows.getBody().front();
  Operation *yield = block.getTerminator();
  SmallVector<Value> replacements(rows.getResults());
  SmallVector<unsigned> kept;
  for (auto [i, value] : llvm::enumerate(yield->getOperands())) {
    auto argument = dyn_cast<BlockArgument>(value);
    if (argument && argument.getOwner() == &block &&
        rows.getRowMaps()[argument.getArgNumber()].getKind() == MapKind::Full &&
        rows.getInputs()[argument.getArgNumber()].getType() ==
            rows.getResult(i).getType())
      replacements[i] = rows.getInputs()[argument.getArgNumber()];
    else
      kept.push_back(i);
  }
  SmallVector<Value> used;
  SmallVector<MapAttr> maps;
  SmallVector<unsigned> positions;
  for (BlockArgument argument : block.getArguments()) {
    bool isRead = llvm::any_of(argument.getUses(), [&](OpOperand &use) {
      return use.getOwner() != yield ||
             llvm::is_contained(kept, use.getOperandNumber());
    });
    if (!isRead)
      continue;
    used.push_back(rows.getInputs()[argument.getArgNumber()]);
    maps.push_back(rows.getRowMaps()[argument.getArgNumber()]);
    positions.push_back(argument.getArgNumber());
  }
  if (kept.size() == rows.getNumResults() &&
      used.size() == rows.getInputs().size())
    return replacements;
  if (kept.empty()) {
    rows.erase();
    return replacements;
  }
  SmallVector<Type> types = llvm::map_to_vector(
      kept, [&](unsigned i) { return rows.getResult(i).getType(); });
  OpBuilder builder(rows);
  Operation *smaller = buildRows(
      builder, rows.getLoc(), types, used, rows.getColumns(), maps,
      rows.getLabel().value_or("rows"),
      [&](OpBuilder &inner, ValueRange arguments) {
        // An argument that is not read has no replacement.
        SmallVector<Value> all(block.getNumArguments(), Value());
        for (auto [value, position] : llvm::zip_equal(arguments, positions))
          all[position] = value;
        IRMapping mapping;
        for (BlockArgument argument : block.getArguments())
          if (all[argument.getArgNumber()])
            mapping.map(argument, all[argument.getArgNumber()]);
        for (Operation &op : block.without_terminator())
          inner.clone(op, mapping);
        return llvm::map_to_vector(kept, [&](unsigned i) {
          return mapping.lookup(yield->getOperand(i));
        });
      });
  copyStage(rows, smaller);
  for (auto [i, number] : llvm::enumerate(kept))
    replacements[number] = smaller->getResult(i);
  rows.erase();
  return replacements;
}

void qlora::model::eraseDeadArithmetic(RowsOp rows) {
  SmallVector<Operation *> ops;
  for (Operation &op : rows.getBody().front().without_terminator())
    ops.push_back(&op);
  for (Operation *op : llvm::reverse(ops))
    if (op->use_empty())
      op->erase();
}

Operation *qlora::model::buildRows(
    OpBuilder &builder, Location loc, TypeRange results, ValueRange inputs,
    int64_t columns, ArrayRef<MapAttr> maps, StringRef label,
    function_ref<SmallVector<Value>(OpBuilder &, ValueRange)> build) {
  SmallVector<Attribute> mapAttrs(maps.begin(), maps.end());
  auto rows = RowsOp::create(builder, loc, results, inputs, columns,
                             builder.getArrayAttr(mapAttrs),
                             builder.getStringAttr(label));
  Block &block = rows.getBody().emplaceBlock();
  for (MapAttr attr : maps)
    block.addArgument(
        argumentType(builder.getContext(), attr.getKind(), columns), loc);
  OpBuilder inner = OpBuilder::atBlockBegin(&block);
  SmallVector<Value> values = build(inner, block.getArguments());
  RowYieldOp::create(inner, loc, values);
  return rows;
}
