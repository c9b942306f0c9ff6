// SPDX-License-Identifier: MIT

// Kernels.def expanded into data. The marks of operands and constants are
// read once, when the table is first asked for.

#include "runtime/Kernels/KernelTable.h"

#include "runtime/Kernels/Requests/Requests.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace qlora {

template <typename Use>
static void forEachWord(std::string_view text, Use use) {
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (end > 0)
      use(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

static KernelOperand parseOperand(std::string_view word) {
  KernelOperand operand;
  operand.isRead = true;
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

static KernelOp parseOp(std::string_view name, std::string_view operands,
                        std::string_view constants, OperandBytes bytes) {
  KernelOp op;
  op.name = name;
  op.operandBytes = bytes;
  forEachWord(operands, [&](std::string_view word) {
    op.operands.push_back(parseOperand(word));
  });
  forEachWord(constants, [&](std::string_view word) {
    const bool isDouble = word.ends_with('~');
    word.remove_suffix(isDouble);
    op.constants.emplace_back(word);
    op.isDouble.push_back(isDouble);
  });
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
  const unsigned index = op->constantIndex(name);
  assert(op->isDouble[index] && "the constant is an integer");
  return std::bit_cast<double>(constants[index]);
}

static std::vector<KernelOp> buildOps() {
  std::vector<KernelOp> ops;
#define QLORA_KERNEL_OP(Op, Operands, Constants)                               \
  ops.push_back(parseOp(#Op, Operands, Constants, requests::Op::operandBytes));
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

static std::vector<KernelRow> buildRows() {
  std::vector<KernelRow> rows;
#define QLORA_KERNEL(Op, Implementation, Target)                               \
  rows.push_back({findKernelOp(#Op), #Implementation, #Target,                 \
                  requests::Op::Implementation::reject,                        \
                  requests::Op::Implementation::workspaceBytes});
#define QLORA_KERNEL_ROOMY(Op, Implementation)                                 \
  for (KernelRow & row : rows)                                                 \
    if (row.fullName() == #Op "." #Implementation)                             \
      row.isRoomy = true;
#define QLORA_KERNEL_TUNE(Op, Implementation)                                  \
  for (KernelRow &row : rows)                                                  \
    if (row.fullName() == #Op "." #Implementation)                             \
      row.tune = requests::Op::Implementation::tune;
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
                                                "nf4", "u8",   "i8"};
  const auto index = static_cast<unsigned>(dtype);
  return index < QLORA_DTYPE_COUNT ? kNames[index] : "unknown type";
}

} // namespace qlora
