// SPDX-License-Identifier: MIT

// What is asked of every request, by the marks and types of Kernels.def and
// the shapes of its op.

#include "runtime/Kernels/Math/NF4.h"
#include "runtime/Kernels/Plans/Plans.h"

#include <algorithm>

namespace qlora::plans {

static constexpr int64_t kMaxExtent = int64_t(1) << 40;

Size matrixBytes(qlora_dtype dtype, int64_t rows, int64_t columns, int64_t ld) {
  if (rows < 1 || columns < 1)
    return 0;
  const Size elements = Size(rows - 1) * Size(ld) + Size(columns);
  return elements * Size(dtypeBits(dtype) / 8);
}

std::string refusalOf(const KernelRequest &request, std::string_view constant,
                      std::string_view must) {
  std::string reason(constant);
  reason.append(" must ").append(must).append(", got ");
  return reason + std::to_string(request.constant(constant));
}

/// The bytes of an operand that is there.
static Size bytesOf(const KernelRequest &r, qlora_dtype dtype,
                    const OperandShape &shape) {
  if (dtype != QLORA_DTYPE_NF4)
    return matrixBytes(dtype, shape.rows, shape.columns,
                       shape.stride.empty() ? shape.columns
                                            : r.constant(shape.stride));
  const Size elements = Size(shape.rows) * Size(shape.columns);
  if (elements.bytes() > uint64_t(kMaxExtent))
    return Size(-1);
  return NF4Layout::of(static_cast<int64_t>(elements.bytes()),
                       r.constant("block"), r.constant("double_quant") != 0)
      .bytes;
}

/// As many operands and constants as the op has, and only optional operands
/// and the workspace are absent.
static Reason needAll(const KernelRequest &r) {
  const KernelOp &op = *r.op;
  const auto refusal = [&](size_t takes, const char *what, size_t got) {
    return op.name + " takes " + std::to_string(takes) + " " + what +
           ", got " + std::to_string(got);
  };
  if (r.constants.size() != op.constants.size())
    return refusal(op.constants.size(), "constants", r.constants.size());
  if (r.dtypes.size() != op.operands.size())
    return refusal(op.operands.size(), "operands", r.dtypes.size());
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const KernelOperand &operand = op.operands[i];
    if (!r.dtypes[i] && !operand.isOptional && operand.name != "workspace")
      return "operand " + operand.name + " is absent";
  }
  return std::nullopt;
}

static Reason needConstants(const KernelRequest &r) {
  for (size_t i = 0; i < r.constants.size(); ++i) {
    const int64_t value = r.constants[i];
    const std::string &name = r.op->constants[i];
    if (r.op->kinds[i] == ConstantKind::kFlag && value != 0 && value != 1)
      return refusalOf(r, name, "be 0 or 1");
    if (r.op->kinds[i] == ConstantKind::kCount &&
        (value < 1 || value > kMaxExtent))
      return refusalOf(r, name, "be in [1, 2^40]");
  }
  return std::nullopt;
}

/// One of the types of Kernels.def.
static Reason needType(const KernelRequest &r, const KernelOperand &operand,
                       qlora_dtype type) {
  std::string wanted, like;
  std::vector<qlora_dtype> types = operand.types;
  if (!operand.like.empty()) {
    types = {r.type(operand.like)};
    like = " like " + operand.like;
  }
  if (types.empty() || std::ranges::find(types, type) != types.end())
    return std::nullopt;
  for (qlora_dtype candidate : types)
    wanted.append(wanted.empty() ? "" : " or ").append(dtypeName(candidate));
  return operand.name + " must be " + wanted + like + ", got " +
         std::string(dtypeName(type));
}

static Reason needOperands(const KernelRequest &r,
                           const std::vector<OperandShape> &shapes) {
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto &[rows, columns, stride] = shapes[i];
    if (!r.dtypes[i])
      continue;
    if (!stride.empty() &&
        (r.constant(stride) < columns || r.constant(stride) > kMaxExtent))
      return refusalOf(r, stride,
                       "hold " + std::to_string(columns) + " columns");
    if (Reason reason = needType(r, r.op->operands[i], *r.dtypes[i]))
      return reason;
    if (bytesOf(r, *r.dtypes[i], shapes[i]).bytes() > uint64_t(1) << 47)
      return "operand " + r.op->operands[i].name +
             " is larger than an address space";
  }
  return std::nullopt;
}

} // namespace qlora::plans

namespace qlora {

std::optional<std::string>
KernelRow::reject(const KernelRequest &request) const {
  if (auto reason = plans::needAll(request))
    return reason;
  if (auto reason = plans::needConstants(request))
    return reason;
  const OperandShapes shapes = op->shapes(request);
  if (shapes.refusal)
    return shapes.refusal;
  if (auto reason = plans::needOperands(request, shapes.each))
    return reason;
  return limits ? limits(request) : std::nullopt;
}

std::vector<uint64_t>
KernelOp::operandBytes(const KernelRequest &request) const {
  const std::vector<OperandShape> shapes = this->shapes(request).each;
  std::vector<uint64_t> bytes(operands.size(), 0);
  for (size_t i = 0; i < shapes.size(); ++i)
    if (request.dtypes[i])
      bytes[i] = plans::bytesOf(request, *request.dtypes[i], shapes[i]).bytes();
  return bytes;
}

} // namespace qlora
