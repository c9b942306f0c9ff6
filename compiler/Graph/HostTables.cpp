// SPDX-License-Identifier: MIT

// Who reads rows, and who more.

#include "compiler/Graph/HostTables.h"

#include "dialects/Train/Train.h"

#include "runtime/Kernels/KernelTable.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

bool qlora::isReadByRows(OpOperand &use) {
  auto library = dyn_cast<LibraryOp>(use.getOwner());
  if (!library)
    return false;
  KernelCall call = library.getKernelCall();
  const KernelOp *kernel = findKernelOp(call.op.str());
  for (auto [operand, argument] :
       llvm::zip(kernel->operands, call.arguments))
    if (argument.kind == KernelArgument::Operand &&
        argument.index == use.getOperandNumber())
      return operand.isReadByRows;
  return false;
}

llvm::StringSet<> qlora::hostTables(ModuleOp module) {
  llvm::StringSet<> tables, others;
  for (auto step : module.getOps<train::StepOp>())
    for (auto weight : step.getBody().getOps<WeightOp>())
      for (OpOperand &use : weight->getUses())
        (isReadByRows(use) ? tables : others).insert(weight.getParameter());
  for (const auto &other : others)
    tables.erase(other.getKey());
  return tables;
}
