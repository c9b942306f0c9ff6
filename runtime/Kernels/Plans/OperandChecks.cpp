// SPDX-License-Identifier: MIT

// Checks of requests: marks and types of Kernels.def, and the shapes of
// operands (Operands.cpp).

#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Kernels/Plans/Plans.h"

#include <algorithm>

namespace qlora::plans {

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

Reason needMultiples(const KernelRequest &r, int64_t of,
                     std::initializer_list<std::string_view> names) {
  for (std::string_view name : names)
    if (r.constant(name) % of != 0)
      return refusalOf(r, name, "be a multiple of " + std::to_string(of));
  return std::nullopt;
}

/// Returns the bytes of an operand that is present.
static Size bytesOf(const KernelRequest &r, size_t operand,
                    const OperandShape &shape) {
  const qlora_dtype dtype = *r.dtypes[operand];
  const std::optional<unsigned> stride = r.op->operands[operand].stride;
  if (!storedFormat(dtype))
    return matrixBytes(dtype, shape.rows, shape.columns,
                       stride ? r.constants[*stride] : shape.columns);
  const Size elements = Size(shape.rows) * Size(shape.columns);
  if (elements.bytes() > uint64_t(kMaxExtent))
    return Size(-1);
  return StoredLayout::of(dtype, static_cast<int64_t>(elements.bytes()),
                          r.constant("block"), r.constant("double_quant") != 0)
      .bytes;
}

/// Checks how many operands and constants there are, and that only optional
/// operands and the workspace are absent.
static Reason needAll(const KernelRequest &r) {
  const KernelOp &op = *r.op;
  const auto refusal = [&](size_t takes, const char *what, size_t got) {
    return op.name + " takes " + std::to_string(takes) + " " + what + ", got " +
           std::to_string(got);
  };
  if (r.constants.size() < op.neededConstants ||
      r.constants.size() > op.constants.size())
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

/// Checks that Kernels.def allows `type` for the operand.
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
    const KernelOperand &operand = r.op->operands[i];
    const int64_t columns = shapes[i].columns;
    if (!r.dtypes[i])
      continue;
    if (operand.stride && (r.constants[*operand.stride] < columns ||
                           r.constants[*operand.stride] > kMaxExtent))
      return refusalOf(r, r.op->constants[*operand.stride],
                       "hold " + std::to_string(columns) + " columns");
    if (Reason reason = needType(r, operand, *r.dtypes[i]))
      return reason;
    if (bytesOf(r, i, shapes[i]).bytes() > uint64_t(1) << 47)
      return "operand " + operand.name + " is larger than an address space";
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
      bytes[i] = plans::bytesOf(request, i, shapes[i]).bytes();
  return bytes;
}

} // namespace qlora
