// SPDX-License-Identifier: MIT

// Prints one program.kernel: plans its loops, then prints them in order.

#include "compiler/Codegen/KernelFunction.h"

#include "compiler/Codegen/LoopPrinter.h"

#include <fmt/format.h>

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

std::string qlora::functionName(program::KernelOp kernel) {
  std::string name;
  for (unsigned char c : kernel.getSymName())
    name += llvm::isAlnum(c) || c == '_' ? std::string(1, c)
                                         : fmt::format("_x{:02x}", c);
  if (llvm::isDigit(name.front()))
    name = "_" + name;
  return name + "_kernel";
}

/// Rejects rows, rotations and results that cannot be printed. Unsupported ops
/// are found during printing.
static LogicalResult checkBody(program::KernelOp kernel) {
  Block &body = kernel.getBody().front();
  int64_t columns = *kernel.getColumns(), turned = 0;
  WalkResult result = kernel.walk([&](Operation *op) {
    for (Value value : op->getResults()) {
      auto row = dyn_cast<RankedTensorType>(value.getType());
      if (row && row.getShape() != ArrayRef<int64_t>(columns)) {
        op->emitOpError("cannot be printed in a kernel: it has type ")
            << row << " where rows have " << columns << " columns";
        return WalkResult::interrupt();
      }
    }
    auto rotate = dyn_cast<RowRotateOp>(op);
    if (!rotate)
      return WalkResult::advance();
    if (columns % 2) {
      op->emitOpError("expects an even number of columns, but got ") << columns;
      return WalkResult::interrupt();
    }
    if (turned && turned != rotate.getTurned()) {
      op->emitOpError("cannot be printed in a kernel that also turns ")
          << turned << " columns";
      return WalkResult::interrupt();
    }
    turned = rotate.getTurned();
    return WalkResult::advance();
  });
  if (result.wasInterrupted())
    return failure();
  for (Value value : body.getTerminator()->getOperands())
    if (!isRow(value) && !value.getType().isF32())
      return kernel.emitOpError("expects rows or numbers as results, but got ")
             << value.getType();
  return success();
}

FailureOr<std::string> qlora::printKernel(program::KernelOp kernel,
                                          const KernelSpelling &spelling) {
  FailureOr<SmallVector<RowOperand>> operands = rowOperands(kernel);
  if (failed(operands) || failed(checkBody(kernel)))
    return failure();
  Block &body = kernel.getBody().front();
  int64_t columns = *kernel.getColumns();
  RowPlan plan = planRows(body, spelling.maxRowArrays(columns),
                          spelling.hasQuickFunctions());
  KernelText text(kernel, functionName(kernel), spelling, *operands);
  unsigned last = plan.loops.size() - 1;
  for (unsigned i = 0; i < last; ++i)
    if (failed(LoopPrinter(text, plan, i).printReductions()))
      return failure();
  if (failed(LoopPrinter(text, plan, last)
                 .printStores(body.getTerminator()->getOperands(),
                              body.getNumArguments())))
    return failure();
  return fmt::format("// {}: rows of {} columns{}.\n",
                     kernel.getSymName().str(), columns,
                     spelling.geometryText(columns)) +
         text.str();
}
