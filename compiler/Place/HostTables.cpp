// SPDX-License-Identifier: MIT

// Finds parameters that are read by rows, and those with other readers.

#include "compiler/Place/HostTables.h"

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
  std::optional<unsigned> operand = call.indexOf(use.get());
  return operand && call.op->operands[*operand].isReadByRows;
}

/// Returns the parameters that some op reads by single rows if `byRows`, else
/// the parameters that some op reads in another way.
static llvm::StringSet<> readers(ModuleOp module, bool byRows) {
  llvm::StringSet<> names;
  for (auto step : module.getOps<train::StepOp>())
    for (auto weight : step.getBody().getOps<WeightOp>())
      for (OpOperand &use : weight->getUses())
        if (isReadByRows(use) == byRows)
          names.insert(weight.getParameter());
  return names;
}

llvm::StringSet<> qlora::readByRows(ModuleOp module) {
  return readers(module, true);
}

llvm::StringSet<> qlora::hostTables(ModuleOp module) {
  llvm::StringSet<> tables = readers(module, true);
  for (const auto &other : readers(module, false))
    tables.erase(other.getKey());
  return tables;
}
