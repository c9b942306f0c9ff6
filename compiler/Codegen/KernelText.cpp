// SPDX-License-Identifier: MIT

// Makes the names, pointers, tables and scalars of a printed kernel.

#include "compiler/Codegen/KernelText.h"

#include "llvm/ADT/StringSwitch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

//===----------------------------------------------------------------------===//
// Names
//===----------------------------------------------------------------------===//

/// Returns the name of an op's result without its number: "mul" for arith.mulf,
/// "sum" for model.row_sum, "round" for math.roundeven.
static StringRef stemOf(Operation *op) {
  StringRef stem = op->getName().stripDialect();
  if (stem.consume_front("row_"))
    return stem;
  return llvm::StringSwitch<StringRef>(stem)
      .Case("addf", "add")
      .Case("subf", "sub")
      .Case("mulf", "mul")
      .Case("divf", "quotient")
      .Case("negf", "neg")
      .Case("cmpf", "is")
      .Case("absf", "abs")
      .Case("roundeven", "round")
      .Case("maximumf", "max")
      .Case("minimumf", "min")
      .Default(stem);
}

std::string KernelText::nameOf(Value value) {
  std::string &name = names[value];
  if (!name.empty())
    return name;
  if (auto argument = dyn_cast<BlockArgument>(value))
    return name = fmt::format("x{}", argument.getArgNumber());
  StringRef stem = stemOf(value.getDefiningOp());
  return name = fmt::format("{}{}", stem.str(), counters[stem]++);
}

//===----------------------------------------------------------------------===//
// Operands
//===----------------------------------------------------------------------===//

std::string KernelText::resultName(unsigned operand) {
  return fmt::format("out{}",
                     operand - kernel.getBody().front().getNumArguments());
}

/// Returns the name of the pointer to an operand, in0, in1, ... or out0, out1,
/// ... Declares the pointer on first use.
std::string KernelText::pointer(unsigned operand) {
  const RowOperand &info = operands[operand];
  std::string name = info.isResult ? resultName(operand)
                                   : fmt::format("in{}", operand);
  pointers.try_emplace(operand, spelling.pointer(name, operand, info.dtype,
                                                info.isResult));
  return name;
}

std::string KernelText::rowPointer(unsigned operand) {
  if (auto known = rowPointers.find(operand); known != rowPointers.end())
    return known->second;
  const RowOperand &info = operands[operand];
  std::string base = pointer(operand);
  std::string offset = info.offset(columns, spelling);
  if (offset.empty())
    return rowPointers[operand] = base;
  std::string name = base + "_row";
  perRow.push_back(fmt::format(
      "{}const {} = {} + {};",
      spelling.pointerType(info.dtype, info.isResult), name, base, offset));
  return rowPointers[operand] = name;
}

FailureOr<std::string> KernelText::table(RowConstantOp op) {
  if (static_cast<int64_t>(op.getValues().size()) != columns)
    return op.emitOpError("expects ")
           << columns << " values, but got " << op.getValues().size();
  std::string &name = tableNames[op];
  if (!name.empty())
    return name;
  name = fmt::format("{}_table{}", function, counters["table"]++);
  tables.push_back(fmt::format(
      "{} {}[{}] = {{{}}};", spelling.tableType(), name, columns,
      fmt::join(llvm::map_range(op.getValues(), floatLiteral), ", ")));
  return name;
}

std::string KernelText::stepField(const char *type, StringRef field) {
  std::string &name = stepFields[field];
  if (name.empty()) {
    name = field.str();
    hoisted.push_back(fmt::format("const {} {} = {};", type, name,
                                  spelling.argument("step->" + name)));
  }
  return name;
}

//===----------------------------------------------------------------------===//
// Scalars
//===----------------------------------------------------------------------===//

/// True for a value that is the same in every row.
bool KernelText::isInvariant(Value value) {
  if (auto known = invariant.find(value); known != invariant.end())
    return known->second;
  bool result;
  if (auto argument = dyn_cast<BlockArgument>(value))
    result = operands[argument.getArgNumber()].kind == MapKind::Global;
  else if (value.getDefiningOp()->hasTrait<RowReduction>())
    result = false;
  else
    result = llvm::all_of(value.getDefiningOp()->getOperands(),
                          [&](Value operand) { return isInvariant(operand); });
  return invariant[value] = result;
}

FailureOr<std::string> KernelText::literal(arith::ConstantOp op) {
  if (auto number = dyn_cast<FloatAttr>(op.getValue()))
    return floatLiteral(number.getValue().convertToDouble());
  auto splat = dyn_cast<SplatElementsAttr>(op.getValue());
  if (splat && isa<FloatType>(splat.getElementType()))
    return floatLiteral(splat.getSplatValue<APFloat>().convertToDouble());
  return op.emitOpError("cannot be printed in a kernel: expects one f32");
}

Expression KernelText::loadScalar(unsigned argument) {
  const RowOperand &info = operands[argument];
  std::string offset = info.offset(columns, spelling);
  return {spelling.load(info.dtype, pointer(argument),
                       offset.empty() ? "0" : offset),
          true};
}

FailureOr<Expression> KernelText::scalarExpression(Value value) {
  if (auto argument = dyn_cast<BlockArgument>(value))
    return loadScalar(argument.getArgNumber());
  SmallVector<std::string> texts;
  for (Value operand : value.getDefiningOp()->getOperands()) {
    FailureOr<std::string> text = scalar(operand);
    if (failed(text))
      return failure();
    texts.push_back(*text);
  }
  return elementwiseExpression(value.getDefiningOp(), texts);
}

FailureOr<std::string> KernelText::scalar(Value value) {
  if (auto known = scalars.find(value); known != scalars.end())
    return known->second;
  Operation *op = value.getDefiningOp();
  if (op && op->hasTrait<RowReduction>()) // the reduction's loop declares it
    return nameOf(value);
  if (auto constant = dyn_cast_or_null<arith::ConstantOp>(op))
    return literal(constant);
  if (auto step = dyn_cast_or_null<RowStepOp>(op))
    return stepField("float", step.getField());
  FailureOr<Expression> expression = scalarExpression(value);
  if (failed(expression))
    return failure();
  const char *type = value.getType().isInteger(1) ? "bool" : "float";
  std::string name = nameOf(value);
  Statements &target = isInvariant(value) ? hoisted : perRow;
  target.push_back(
      fmt::format("const {} {} = {};", type, name, expression->text));
  return scalars[value] = name;
}

//===----------------------------------------------------------------------===//
// The function
//===----------------------------------------------------------------------===//

static constexpr size_t kWidth = 80;

/// Returns where to break a long line: after a comma if one is near.
static size_t breakAt(StringRef line, size_t width) {
  size_t comma = line.take_front(width + 1).rfind(StringRef(", "));
  if (comma != StringRef::npos && comma + 1 > width / 2)
    return comma + 1;
  return line.rfind(' ', width + 1);
}

/// Adds a line, broken at spaces if it is too long.
static void appendLine(std::string &text, int indent, StringRef line) {
  StringRef rest = line.ltrim(' ');
  indent += line.size() - rest.size();
  int hang = indent + 4;
  while (indent + rest.size() > kWidth && !rest.starts_with("#")) {
    size_t space = breakAt(rest, kWidth - indent);
    if (space == StringRef::npos)
      break;
    text += fmt::format("{:{}}{}\n", "", indent, rest.take_front(space).str());
    rest = rest.drop_front(space + 1);
    indent = hang;
  }
  text += fmt::format("{:{}}{}\n", "", indent, rest.str());
}

std::string KernelText::str() const {
  std::string text;
  auto append = [&](int indent, const Statements &lines) {
    for (const std::string &line : lines)
      appendLine(text, indent, line);
  };
  append(0, tables);
  append(0, spelling.signature(function, columns));
  for (const auto &[operand, declaration] : pointers)
    appendLine(text, 2, declaration);
  append(2, hoisted);
  append(2, spelling.beginRows(columns));
  append(spelling.endRows().empty() ? 2 : 4, perRow);
  append(2, spelling.endRows());
  appendLine(text, 0, "}");
  return text;
}
