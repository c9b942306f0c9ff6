// SPDX-License-Identifier: MIT

// Checks a generated kernel's attributes and prints its addresses.

#include "compiler/Codegen/RowOperands.h"

#include "runtime/Kernels/KernelTable.h"

#include <fmt/format.h>

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

static std::string times(const std::string &row, int64_t factor) {
  return factor == 1 ? row : fmt::format("{} * {}", row, factor);
}

std::string RowOperand::offset(int64_t columns,
                               const KernelSpelling &spelling) const {
  switch (kind) {
  case MapKind::Column:
  case MapKind::Global:
    return "";
  case MapKind::Scalar:
    return spelling.rowQuotient(group);
  case MapKind::Group:
    return times(spelling.rowQuotient(group), stride);
  case MapKind::Full:
    break;
  }
  if (stride == width)
    return times(spelling.rowQuotient(1), columns);
  if (groups == 1)
    return times(spelling.rowQuotient(1), stride);
  return fmt::format("{} + {}", times(spelling.rowQuotient(groups), stride),
                     times(spelling.rowRemainder(groups), columns));
}

uint64_t RowOperand::skippedBytes(uint64_t bytes) const {
  if (kind != MapKind::Full)
    return 0;
  uint64_t size = dtypeBits(dtype) / 8;
  // The buffer ends with its last row, so the last gap is not part of it.
  return bytes / (stride * size) * (stride - width) * size;
}

static LogicalResult checkOperand(program::KernelOp kernel, unsigned number,
                                  const RowOperand &operand) {
  auto error = [&] { return kernel.emitOpError("operand ") << number << " "; };
  int64_t last = operand.isResult ? QLORA_DTYPE_F16 : QLORA_DTYPE_I32;
  if ((operand.dtype < 0 || operand.dtype > last) &&
      operand.dtype != QLORA_DTYPE_I8)
    return error() << "has dtype " << static_cast<int64_t>(operand.dtype)
                   << ", which a row cannot "
                   << (operand.isResult ? "write" : "read");
  if (operand.group < 1 || operand.groups < 1)
    return error() << "has groups of " << operand.group << " and "
                   << operand.groups << " rows";
  if (operand.kind != MapKind::Full && operand.kind != MapKind::Group)
    return success();
  if (operand.stride < operand.width)
    return error() << "has rows of " << operand.width
                   << " elements, but stride " << operand.stride;
  if (operand.stride % static_cast<int64_t>(kernel.getAligned()))
    return error() << "has stride " << operand.stride
                   << ", no multiple of the " << kernel.getAligned()
                   << " elements that its rows are aligned to";
  return success();
}

FailureOr<SmallVector<RowOperand>>
qlora::rowOperands(program::KernelOp kernel) {
  if (!kernel.getColumns() || !kernel.getMaps() || !kernel.getDtypes() ||
      !kernel.getStrides() || !kernel.getGroups())
    return kernel.emitOpError("expects columns, maps, dtypes, strides and "
                              "groups with a body");
  Block &body = kernel.getBody().front();
  size_t inputs = body.getNumArguments();
  if (!body.mightHaveTerminator() || !isa<RowYieldOp>(body.getTerminator()))
    return kernel.emitOpError("expects a body that ends in model.row_yield");
  size_t count = inputs + body.getTerminator()->getNumOperands();
  if (kernel.getMaps()->size() != inputs ||
      kernel.getDtypes()->size() != count ||
      kernel.getStrides()->size() != count ||
      kernel.getGroups()->size() != count)
    return kernel.emitOpError("expects ")
           << inputs << " maps and " << count << " dtypes, strides and groups";
  if (static_cast<int64_t>(*kernel.getColumns()) < 1)
    return kernel.emitOpError("expects a positive number of columns");
  SmallVector<RowOperand> operands(count);
  for (auto [i, operand] : llvm::enumerate(operands)) {
    operand.isResult = i >= inputs;
    if (!operand.isResult) {
      auto map = cast<MapAttr>((*kernel.getMaps())[i]);
      operand.kind = map.getKind();
      operand.group = map.getGroup();
    } else if (!isa<RankedTensorType>(
                   body.getTerminator()->getOperand(i - inputs).getType())) {
      operand.kind = MapKind::Scalar;
    }
    operand.dtype = static_cast<qlora_dtype>((*kernel.getDtypes())[i]);
    operand.stride = (*kernel.getStrides())[i];
    operand.groups = (*kernel.getGroups())[i];
    operand.width = static_cast<int64_t>(*kernel.getColumns());
    if (operand.kind == MapKind::Full)
      operand.width *= operand.groups;
    if (failed(checkOperand(kernel, i, operand)))
      return failure();
  }
  return operands;
}
