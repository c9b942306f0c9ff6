// SPDX-License-Identifier: MIT

// Expands Kernels.def into data. The marks of operands and constants are parsed
// once, when the table is first used.

#include "runtime/Kernels/KernelTable.h"

#include "runtime/Kernels/Plans/Plans.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <limits>

namespace qlora {

template <typename Use>
static void forEachWord(std::string_view text, char between, Use use) {
  while (!text.empty()) {
    const size_t end = std::min(text.find(between), text.size());
    if (end > 0)
      use(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

static void parseTypes(std::string_view text, KernelOperand &operand) {
  forEachWord(text, '|', [&](std::string_view word) {
    for (unsigned type = 0; type < QLORA_DTYPE_COUNT; ++type)
      if (dtypeName(qlora_dtype(type)) == word)
        return operand.types.push_back(qlora_dtype(type));
    if (word == "quantized")
      for (const StoredFormat &format : kStoredFormats)
        operand.types.push_back(format.dtype);
    else
      operand.like = word;
  });
}

static KernelOperand parseOperand(std::string_view word) {
  KernelOperand operand;
  operand.isRead = true;
  if (const size_t colon = word.find(':'); colon != word.npos) {
    parseTypes(word.substr(colon + 1), operand);
    word = word.substr(0, colon);
  }
  while (!word.empty()) {
    const char mark = word.back();
    if (mark == '!') {
      operand.isRead = false;
      operand.isWritten = true;
    } else if (mark == '+') {
      operand.isWritten = true;
    } else if (mark == '?') {
      operand.isOptional = true;
    } else if (mark == '@') {
      operand.isReadByRows = true;
    } else if (mark == '^') {
      operand.mayRound = true;
    } else {
      break;
    }
    word.remove_suffix(1);
  }
  operand.name = word;
  return operand;
}

static ConstantKind kindOf(char mark) {
  switch (mark) {
  case '?':
    return ConstantKind::kFlag;
  case '~':
    return ConstantKind::kDouble;
  case '*':
    return ConstantKind::kOther;
  default:
    return ConstantKind::kCount;
  }
}

/// Finds the operand of each row stride.
static void assignStrides(KernelOp &op) {
  for (unsigned i = 0; i < op.constants.size(); ++i) {
    const std::string_view name = op.constants[i];
    if (!name.starts_with("ld"))
      continue;
    const auto operand = std::find_if(
        op.operands.rbegin(), op.operands.rend(), [&](const KernelOperand &o) {
          return o.name.starts_with(name.substr(2));
        });
    assert(operand != op.operands.rend() && "a row stride has an operand");
    operand->stride = i;
  }
}

static KernelOp parseOp(std::string_view name, std::string_view operands,
                        std::string_view constants) {
  KernelOp op;
  op.name = name;
  forEachWord(operands, ' ', [&](std::string_view word) {
    op.operands.push_back(parseOperand(word));
  });
  op.neededConstants = std::numeric_limits<size_t>::max();
  forEachWord(constants, ' ', [&](std::string_view word) {
    if (word == "|") {
      op.neededConstants = op.constants.size();
      return;
    }
    op.kinds.push_back(kindOf(word.back()));
    word.remove_suffix(op.kinds.back() != ConstantKind::kCount);
    op.constants.emplace_back(word);
  });
  op.neededConstants = std::min(op.neededConstants, op.constants.size());
  assignStrides(op);
  return op;
}

unsigned KernelOp::constantIndex(std::string_view constant) const {
  const auto found = std::find(constants.begin(), constants.end(), constant);
  assert(found != constants.end() && "no such constant of this op");
  return static_cast<unsigned>(found - constants.begin());
}

unsigned KernelOp::operandIndex(std::string_view operand) const {
  const auto found =
      std::find_if(operands.begin(), operands.end(),
                   [&](const KernelOperand &o) { return o.name == operand; });
  assert(found != operands.end() && "no such operand of this op");
  return static_cast<unsigned>(found - operands.begin());
}

double KernelRequest::constantAsDouble(std::string_view name) const {
  assert(op->kinds[op->constantIndex(name)] == ConstantKind::kDouble &&
         "it is an integer");
  return std::bit_cast<double>(constant(name));
}

static std::vector<KernelOp> buildOps() {
  std::vector<KernelOp> ops;
#define QLORA_KERNEL_OP(Op, Operands, Constants, Category, Work)               \
  ops.push_back(parseOp(#Op, Operands, Constants));                            \
  ops.back().shapes = plans::Op::shapes;
#include "runtime/Kernels/Kernels.def"
  return ops;
}

const std::vector<KernelOp> &kernelOps() {
  static const std::vector<KernelOp> ops = buildOps();
  return ops;
}

const KernelOp *findKernelOp(std::string_view name) {
  for (const KernelOp &op : kernelOps())
    if (op.name == name)
      return &op;
  return nullptr;
}

/// Expands the rows of Kernels.def, in which properties follow their row.
static std::vector<KernelRow> buildRows() {
  std::vector<KernelRow> rows;
  const auto add = [&](std::string_view op, std::string_view implementation,
                       std::string_view target) {
    KernelRow &row = rows.emplace_back();
    row.op = findKernelOp(op);
    row.implementation = implementation;
    row.target = target;
  };
#define QLORA_KERNEL(Op, Implementation, Target)                               \
  add(#Op, #Implementation, #Target);
#define QLORA_KERNEL_ORACLE(Op)                                                \
  add(#Op, "reference", "cpu");                                                \
  rows.back().isOracle = true;
#define QLORA_KERNEL_WORKSPACE(Op, Implementation, Bytes)                      \
  rows.back().workspace = plans::Bytes;
#define QLORA_KERNEL_LIMITS(Op, Implementation)                                \
  rows.back().limits = plans::Op::Implementation::limits;
#define QLORA_KERNEL_TUNE(Op, Implementation, Tune)                            \
  rows.back().tune = plans::Tune;
#define QLORA_KERNEL_ROOMY(Op, Implementation) rows.back().isRoomy = true;
#include "runtime/Kernels/Kernels.def"
  return rows;
}

const std::vector<KernelRow> &kernelRows() {
  static const std::vector<KernelRow> rows = buildRows();
  return rows;
}

const KernelRow *findKernelRow(std::string_view fullName) {
  for (const KernelRow &row : kernelRows())
    if (row.fullName() == fullName)
      return &row;
  return nullptr;
}

std::string_view dtypeName(qlora_dtype dtype) {
  static constexpr std::string_view kNames[] = {"f32", "bf16", "f16", "i32",
                                                "",    "u8",   "i8"};
  if (const StoredFormat *format = storedFormat(dtype))
    return format->name;
  const auto index = static_cast<unsigned>(dtype);
  return index < std::size(kNames) ? kNames[index] : "unknown type";
}

} // namespace qlora
