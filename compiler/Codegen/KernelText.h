// SPDX-License-Identifier: MIT

// The text of a kernel outside its column loops: names, pointers, tables, and
// the numbers that all columns of a row share. A line appears when something
// first asks for it, so nothing is declared that is not used.

#ifndef QLORA_COMPILER_CODEGEN_KERNELTEXT_H
#define QLORA_COMPILER_CODEGEN_KERNELTEXT_H

#include <map>
#include <string>

#include "compiler/Codegen/KernelSpelling.h"
#include "compiler/Codegen/RowExpressions.h"
#include "compiler/Codegen/RowOperands.h"

namespace qlora {

class KernelText {
public:
  KernelText(program::KernelOp kernel, std::string function,
             const KernelSpelling &spelling,
             llvm::SmallVector<RowOperand> operands)
      : kernel(kernel), function(std::move(function)), spelling(spelling),
        operands(std::move(operands)), columns(*kernel.getColumns()) {}

  const KernelSpelling &getSpelling() const { return spelling; }
  const RowOperand &getOperand(unsigned number) const {
    return operands[number];
  }
  int64_t getColumns() const { return columns; }
  /// Elements at whose multiples every row starts.
  int64_t getAligned() { return kernel.getAligned(); }

  /// What a value is called: its op and a number, the same in every loop.
  std::string nameOf(mlir::Value value);
  /// "out0" for the first operand that is a result.
  std::string resultName(unsigned operand);
  /// A variable that points to the current row of an operand.
  std::string rowPointer(unsigned operand);
  /// A file-scope array with the numbers of `op`.
  llvm::FailureOr<std::string> table(model::RowConstantOp op);
  /// A variable with a field of the step block, declared as `type`.
  std::string stepField(const char *type, llvm::StringRef field);
  /// A number (f32 or i1) as a name or literal; its lines are added where
  /// they are computed least often.
  llvm::FailureOr<std::string> scalar(mlir::Value value);

  /// Adds lines to the row loop.
  void add(const Statements &lines) {
    perRow.insert(perRow.end(), lines.begin(), lines.end());
  }
  /// The whole function, after all of the above.
  std::string str() const;

private:
  std::string pointer(unsigned operand);
  bool isInvariant(mlir::Value value);
  llvm::FailureOr<std::string> literal(mlir::arith::ConstantOp op);
  llvm::FailureOr<Expression> scalarExpression(mlir::Value value);
  Expression loadScalar(unsigned argument);

  program::KernelOp kernel;
  std::string function;
  const KernelSpelling &spelling;
  llvm::SmallVector<RowOperand> operands;
  int64_t columns;

  Statements tables, hoisted, perRow;
  std::map<unsigned, std::string> pointers; ///< in the order of operands
  llvm::DenseMap<unsigned, std::string> rowPointers;
  llvm::DenseMap<mlir::Value, std::string> names, tableNames, scalars;
  llvm::DenseMap<mlir::Value, bool> invariant;
  llvm::StringMap<unsigned> counters;
  llvm::StringMap<std::string> stepFields;
};

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_KERNELTEXT_H
