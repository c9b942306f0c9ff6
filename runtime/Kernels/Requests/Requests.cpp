// SPDX-License-Identifier: MIT

// The checks that the requests of several ops share.

#include "runtime/Kernels/Requests/Requests.h"

#include "runtime/Kernels/Math/NF4.h"

namespace qlora::requests {

static constexpr int64_t kMaxExtent = int64_t(1) << 40;

static std::string join(std::string_view name, std::string_view text,
                        int64_t value) {
  std::string reason(name);
  reason.append(text).append(std::to_string(value));
  return reason;
}

Size matrixBytes(qlora_dtype dtype, int64_t rows, int64_t columns, int64_t ld) {
  if (rows < 1 || columns < 1)
    return 0;
  const Size elements = Size(rows - 1) * Size(ld) + Size(columns);
  return elements * Size(dtypeBits(dtype) / 8);
}

Size weightBytes(const KernelRequest &request, std::string_view operand) {
  const int64_t rows = request.constant("rows");
  const int64_t columns = request.constant("columns");
  if (typeOf(request, operand) != QLORA_DTYPE_NF4)
    return matrixBytes(typeOf(request, operand), rows, columns, columns);
  const Size elements = Size(rows) * Size(columns);
  if (elements.bytes() > uint64_t(kMaxExtent))
    return Size(-1);
  return NF4Layout::of(static_cast<int64_t>(elements.bytes()),
                       request.constant("block"),
                       request.constant("double_quant") != 0)
      .bytes;
}

qlora_dtype typeOf(const KernelRequest &request, std::string_view operand) {
  return request.dtype(operand).value_or(QLORA_DTYPE_F32);
}

Reason needShape(const KernelRequest &request) {
  const KernelOp &op = *request.op;
  if (request.constants.size() != op.constants.size())
    return join(op.name + " takes " + std::to_string(op.constants.size()),
                " constants, got ", int64_t(request.constants.size()));
  if (request.dtypes.size() != op.operands.size())
    return join(op.name + " takes " + std::to_string(op.operands.size()),
                " operands, got ", int64_t(request.dtypes.size()));
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const KernelOperand &operand = op.operands[i];
    if (!request.dtypes[i] && !operand.isOptional &&
        operand.name != "workspace")
      return "operand " + operand.name + " is absent";
  }
  return std::nullopt;
}

Reason needPositive(const KernelRequest &request,
                    std::initializer_list<std::string_view> constants) {
  for (std::string_view name : constants) {
    const int64_t value = request.constant(name);
    if (value < 1 || value > kMaxExtent)
      return join(name, " must be in [1, 2^40], got ", value);
  }
  return std::nullopt;
}

Reason needFlag(const KernelRequest &request,
                std::initializer_list<std::string_view> constants) {
  for (std::string_view name : constants) {
    const int64_t value = request.constant(name);
    if (value != 0 && value != 1)
      return join(name, " must be 0 or 1, got ", value);
  }
  return std::nullopt;
}

Reason needStride(const KernelRequest &request, std::string_view ld,
                  int64_t columns) {
  const int64_t value = request.constant(ld);
  if (value < columns || value > kMaxExtent)
    return join(join(ld, " must hold ", columns), " columns, got ", value);
  return std::nullopt;
}

Reason needType(const KernelRequest &request, std::string_view operand,
                std::initializer_list<qlora_dtype> types) {
  const std::optional<qlora_dtype> type = request.dtype(operand);
  if (!type)
    return std::nullopt;
  std::string wanted;
  for (qlora_dtype candidate : types) {
    if (*type == candidate)
      return std::nullopt;
    wanted += wanted.empty() ? "" : " or ";
    wanted += dtypeName(candidate);
  }
  std::string reason(operand);
  reason.append(" must be ").append(wanted);
  return reason.append(", got ").append(dtypeName(*type));
}

Reason needBlock(const KernelRequest &request) {
  const int64_t block = request.constant("block");
  if (block < 16 || block > 65536 || (block & (block - 1)) != 0)
    return join("block", " must be a power of two in [16, 65536], got ", block);
  return std::nullopt;
}

Reason needNF4(const KernelRequest &request, std::string_view operand) {
  if (typeOf(request, operand) != QLORA_DTYPE_NF4)
    return std::nullopt;
  if (Reason reason = needBlock(request))
    return reason;
  return needFlag(request, {"double_quant"});
}

Reason needAddressable(const KernelRequest &request) {
  const std::vector<uint64_t> bytes = request.op->operandBytes(request);
  for (size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] > uint64_t(1) << 47)
      return "operand " + request.op->operands[i].name +
             " is larger than an address space";
  return std::nullopt;
}

} // namespace qlora::requests
