// SPDX-License-Identifier: MIT

// Prints the expressions of one column loop.

#include "compiler/Codegen/LoopPrinter.h"

#include "mlir/IR/Matchers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

/// Returns an operand's text without its outer parentheses.
static std::string withoutParentheses(const std::string &operand) {
  return operand.front() == '(' ? operand.substr(1, operand.size() - 2)
                                : operand;
}

/// Maximum characters of an expression that is printed without a name.
static constexpr size_t kMaxInline = 48;

ArrayRef<LoopPrinter::Half> LoopPrinter::halves() const {
  static constexpr Half kAll[] = {kWhole};
  static constexpr Half kPair[] = {kLow, kHigh};
  if (plan.loops[number].turned)
    return kPair;
  return kAll;
}

bool LoopPrinter::turnsPart() const {
  int64_t turned = plan.loops[number].turned;
  return turned && turned < text.getColumns();
}

/// If only the first R columns rotate, columns c and c + R/2 form a pair for
/// c < R/2. The remaining columns are paired in the same way.
std::string LoopPrinter::firstColumn(Half half) const {
  int64_t middle = text.getColumns() / 2;
  if (turnsPart()) {
    int64_t turned = plan.loops[number].turned / 2;
    return half == kLow ? fmt::format("c + (c < {0} ? 0 : {0})", turned)
                        : fmt::format("c + (c < {0} ? {0} : {1})", turned,
                                      middle);
  }
  return half == kHigh ? fmt::format("c + {}", middle) : "c";
}

std::string LoopPrinter::column(Half half) const {
  return firstColumn(half) + (loop.lanes > 1 ? " + lane" : "");
}

/// Uses lanes except in two cases. With row arrays, the lanes of neighbouring
/// threads would cause bank conflicts in shared memory. If only some columns
/// rotate, the columns of a thread are not consecutive.
void LoopPrinter::chooseLanes() {
  loop.rowColumns = text.getColumns();
  loop.columns = loop.rowColumns / static_cast<int64_t>(halves().size());
  if (plan.kept.empty() && !turnsPart())
    loop.lanes = text.getSpelling().lanes(loop.columns, loop.rowColumns,
                                         text.getAligned());
}

bool LoopPrinter::isKeptEarlier(Value value) const {
  auto kept = plan.kept.find(value);
  return kept != plan.kept.end() && kept->second < number;
}

void LoopPrinter::countUses(Value value, Half half) {
  if (!isRow(value) || uses[{value, half}]++ || isKeptEarlier(value))
    return;
  Operation *op = value.getDefiningOp();
  if (!op)
    return;
  if (isa<RowRotateOp>(op))
    half = half == kLow ? kHigh : kLow;
  unsigned times = repeatsOperands(op) ? 2 : 1;
  for (unsigned i = 0; i < times; ++i)
    for (Value operand : op->getOperands())
      countUses(operand, half);
}

//===----------------------------------------------------------------------===//
// Expressions
//===----------------------------------------------------------------------===//

static constexpr const char *kSuffix[] = {"", "_low", "_high"};

/// Returns C++ for a random number. With lanes, the loop draws the random words
/// of all lanes before its body. The result is then the current lane's word,
/// which qlora_unit converts to a float.
std::string LoopPrinter::draw(RowRandomOp op, Half half) {
  std::string seed = text.stepField("uint64_t", "seed");
  std::string microBatch = text.stepField("uint64_t", "micro_batch");
  std::string first = loop.lanes > 1 ? firstColumn(half) : column(half);
  if (op.getShared())
    first = fmt::format("{} * {} + {}", text.stepField("uint32_t", "shard"),
                        op.getResult().getType().getDimSize(0), first);
  // Map `row` to its row in the whole batch: undo the split into pipeline
  // chunks, then the split of sequences over cp ranks.
  std::string row = "uint32_t(row)";
  if (op.getRuns() > 1)
    row = fmt::format("qlora_whole_row({}, {}u, {}u, {}u)", row,
                      op.getRunRows(), op.getRuns(), op.getRun());
  row = fmt::format("qlora_whole_row({}, {}, {}, {})", row,
                    text.stepField("uint32_t", "line_tokens"),
                    text.stepField("uint32_t", "line_parts"),
                    text.stepField("uint32_t", "line_part"));
  std::string place = fmt::format("{}, {}, {}, {}, {}", seed, microBatch,
                                  op.getId(), row, first);
  if (loop.lanes == 1)
    return fmt::format("qlora_uniform({})", place);
  std::string name = fmt::format("{}s{}", text.nameOf(op), kSuffix[half]);
  std::string load = fmt::format("const qlora_draws<{0}> {1} = "
                                 "qlora_draw<{0}>({2});",
                                 loop.lanes, name, place);
  if (!llvm::is_contained(loop.loads, load))
    loop.loads.push_back(load);
  return name + ".word[lane]";
}

/// If `op` is `random >= p` and the loop has lanes, returns a comparison of the
/// random word with an integer. The comparison is exact, because the random
/// number is the upper 24 bits of its word, times 2^-24.
std::optional<Expression> LoopPrinter::keepExpression(Operation *op,
                                                      Half half) {
  auto compare = dyn_cast<arith::CmpFOp>(op);
  if (!compare || loop.lanes == 1 ||
      compare.getPredicate() != arith::CmpFPredicate::OGE)
    return std::nullopt;
  auto random = compare.getLhs().getDefiningOp<RowRandomOp>();
  auto splat = compare.getRhs().getDefiningOp<RowSplatOp>();
  APFloat p(0.0f);
  if (!random || !matchPattern(splat ? splat.getValue() : compare.getRhs(),
                               m_ConstantFloat(&p)))
    return std::nullopt;
  double least = std::ceil(p.convertToDouble() * 0x1p24);
  if (!(least > 0 && least < 0x1p24))
    return std::nullopt;
  return Expression{fmt::format("{} >= {}u", draw(random, half),
                                static_cast<uint32_t>(least) << 8)};
}

FailureOr<Expression> LoopPrinter::opExpression(Operation *op, Half half) {
  auto splat = dyn_cast<RowSplatOp>(op);
  if (splat || isa<arith::ConstantOp>(op)) {
    FailureOr<std::string> number =
        text.scalar(splat ? Value(splat.getValue()) : op->getResult(0));
    if (failed(number))
      return failure();
    return Expression{*number, true};
  }
  if (auto constant = dyn_cast<RowConstantOp>(op)) {
    FailureOr<std::string> table = text.table(constant);
    if (failed(table))
      return failure();
    return Expression{fmt::format("{}[{}]", *table, column(half)), true};
  }
  if (auto random = dyn_cast<RowRandomOp>(op)) {
    std::string drawn = draw(random, half);
    return Expression{
        loop.lanes > 1 ? fmt::format("qlora_unit({})", drawn) : drawn, true};
  }
  if (std::optional<Expression> keep = keepExpression(op, half))
    return *keep;
  if (auto rotate = dyn_cast<RowRotateOp>(op)) {
    FailureOr<std::string> other =
        row(rotate.getRow(), half == kLow ? kHigh : kLow);
    if (failed(other))
      return failure();
    if (turnsPart())
      return Expression{fmt::format("c < {} ? {}{} : 0.0f",
                                    rotate.getTurned() / 2,
                                    half == kLow ? "-" : "", *other)};
    return half == kLow ? Expression{"-" + *other} : Expression{*other, true};
  }
  SmallVector<std::string> operands;
  for (Value operand : op->getOperands()) {
    FailureOr<std::string> operandText = row(operand, half);
    if (failed(operandText))
      return failure();
    operands.push_back(*operandText);
  }
  return elementwiseExpression(op, operands);
}

bool LoopPrinter::isInLanes(unsigned operand) const {
  return loop.lanes > 1 &&
         KernelSpelling::hasLanes(text.getOperand(operand).dtype);
}

/// Returns C++ for an operand's element in the current column. With lanes, the
/// elements of all lanes are loaded before the loop body.
Expression LoopPrinter::loadOperand(unsigned argument, Half half) {
  const KernelSpelling &spelling = text.getSpelling();
  qlora_dtype dtype = text.getOperand(argument).dtype;
  std::string pointer = text.rowPointer(argument);
  if (!isInLanes(argument))
    return {spelling.load(dtype, pointer, column(half)), true};
  std::string lanes = fmt::format("x{}s{}", argument, kSuffix[half]);
  std::string load = spelling.loadLanes(dtype, lanes, pointer,
                                       firstColumn(half), loop.lanes);
  if (!llvm::is_contained(loop.loads, load))
    loop.loads.push_back(load);
  return {lanes + "[lane]", true};
}

LogicalResult LoopPrinter::storeResult(Value result, unsigned operand,
                                       Half half, Statements &stores) {
  FailureOr<std::string> value = lastUse(result, half);
  if (failed(value))
    return failure();
  const KernelSpelling &spelling = text.getSpelling();
  qlora_dtype dtype = text.getOperand(operand).dtype;
  std::string pointer = text.rowPointer(operand);
  if (loop.lanes == 1) {
    stores.push_back(spelling.store(dtype, pointer, column(half), *value));
    return success();
  }
  std::string lanes =
      fmt::format("{}s{}", text.resultName(operand), kSuffix[half]);
  laneResults.push_back(lanes);
  stores.push_back(fmt::format("{}[lane] = {};", lanes, *value));
  loop.stores.push_back(
      spelling.storeLanes(dtype, lanes, pointer, firstColumn(half)));
  return success();
}

FailureOr<Expression> LoopPrinter::expression(Value value, Half half) {
  if (isKeptEarlier(value))
    return Expression{
        fmt::format("{}_row[{}]", text.nameOf(value), column(half)), true};
  if (Operation *op = value.getDefiningOp())
    return opExpression(op, half);
  return loadOperand(cast<BlockArgument>(value).getArgNumber(), half);
}

/// True if the value needs a variable. Loads need one, because a load inside a
/// conditional would become a branch. Loads of lanes have a variable already.
bool LoopPrinter::needsName(Value value, Half half,
                            const Expression &expression) const {
  Operation *op = value.getDefiningOp();
  if (op && isa<RowSplatOp, arith::ConstantOp>(op))
    return false;
  if (!op)
    return !isInLanes(cast<BlockArgument>(value).getArgNumber());
  if (isa<RowConstantOp>(op) || plan.kept.contains(value))
    return true;
  return uses.lookup({value, half}) > 1 || expression.text.size() > kMaxInline;
}

/// Returns the name of a variable with the value of the expression `equal`.
/// Values with the same expression share a variable.
std::string LoopPrinter::bind(Value value, Half half,
                              const std::string &equal) {
  std::string &name = bound[equal];
  if (!name.empty())
    return name;
  name = text.nameOf(value) + kSuffix[half];
  bool isBool =
      cast<RankedTensorType>(value.getType()).getElementType().isInteger(1);
  loop.body.push_back(
      fmt::format("const {} {} = {};", isBool ? "bool" : "float", name, equal));
  return name;
}

/// Returns `value` in column `half` as text for use inside an expression.
FailureOr<std::string> LoopPrinter::row(Value value, Half half) {
  if (!isRow(value))
    return text.scalar(value);
  Key key{value, half};
  if (auto it = known.find(key); it != known.end())
    return it->second;
  FailureOr<Expression> equal = expression(value, half);
  if (failed(equal))
    return failure();
  if (!needsName(value, half, *equal))
    return equal->asOperand();
  std::string name = bind(value, half, equal->text);
  auto kept = plan.kept.find(value);
  if (kept != plan.kept.end() && kept->second == number)
    loop.body.push_back(fmt::format("{}_row[{}] = {};", text.nameOf(value),
                                    column(half), name));
  return known[key] = name;
}

/// Returns `value` as an expression without outer parentheses. A value without
/// other uses gets no variable.
FailureOr<std::string> LoopPrinter::lastUse(Value value, Half half) {
  Operation *op = value.getDefiningOp();
  bool isOnlyUse = op && isRow(value) && uses.lookup({value, half}) == 1 &&
                   !isKeptEarlier(value) && !plan.kept.contains(value);
  if (isOnlyUse) {
    FailureOr<Expression> equal = expression(value, half);
    return failed(equal) ? FailureOr<std::string>() : equal->text;
  }
  FailureOr<std::string> name = row(value, half);
  return failed(name) ? name : withoutParentheses(*name);
}

//===----------------------------------------------------------------------===//
// Loops
//===----------------------------------------------------------------------===//

void LoopPrinter::print() {
  if (!laneResults.empty())
    loop.loads.push_back(fmt::format("qlora_lanes<{}> {};", loop.lanes,
                                     fmt::join(laneResults, ", ")));
  for (const auto &[value, first] : plan.kept) {
    if (first != number)
      continue;
    text.add(text.getSpelling().rowArray(text.nameOf(value) + "_row",
                                        text.getColumns()));
    loop.fillsArray = true;
  }
  text.add(text.getSpelling().loop(loop));
}

LogicalResult LoopPrinter::printReductions() {
  ArrayRef<Operation *> ops = plan.loops[number].reductions;
  chooseLanes();
  for (Operation *op : ops)
    for (Half half : halves())
      countUses(op->getOperand(0), half);
  for (Operation *op : ops) {
    Reduction reduction = {text.nameOf(op->getResult(0)), isa<RowMaxOp>(op),
                           {}};
    for (Half half : halves()) {
      FailureOr<std::string> term = lastUse(op->getOperand(0), half);
      if (failed(term))
        return failure();
      reduction.terms.push_back(*term);
    }
    loop.reductions.push_back(std::move(reduction));
  }
  return print(), success();
}

LogicalResult LoopPrinter::storeNumber(Value result, unsigned operand) {
  FailureOr<std::string> value = text.scalar(result);
  if (failed(value))
    return failure();
  const KernelSpelling &spelling = text.getSpelling();
  std::string store = spelling.store(text.getOperand(operand).dtype,
                                     text.rowPointer(operand), "0", *value);
  text.add(spelling.oncePerRow(store, text.getColumns()));
  return success();
}

LogicalResult LoopPrinter::printStores(OperandRange results,
                                       unsigned firstResult) {
  chooseLanes();
  for (Value result : results)
    for (Half half : halves())
      countUses(result, half);
  Statements stores;
  for (auto [i, result] : llvm::enumerate(results))
    for (Half half : halves())
      if (isRow(result) &&
          failed(storeResult(result, firstResult + i, half, stores)))
        return failure();
  loop.body.insert(loop.body.end(), stores.begin(), stores.end());
  print();
  for (auto [i, result] : llvm::enumerate(results))
    if (!isRow(result) && failed(storeNumber(result, firstResult + i)))
      return failure();
  return success();
}
