// SPDX-License-Identifier: MIT

// The text of a kernel outside its column loops: names, pointers, tables, and
// the scalars that all columns of a row use. Each line is added on first use,
// so unused declarations do not occur.

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
  /// Returns the alignment of rows. Each row starts at a multiple of that many
  /// elements, or of 16 bytes, whichever is less.
  int64_t getAligned() { return kernel.getAligned(); }

  /// Returns the name of a value: its op and a number, the same in every loop.
  std::string nameOf(mlir::Value value);
  /// Returns the name of a result operand: "out0" for the first one.
  std::string resultName(unsigned operand);
  /// Returns the name of a pointer to the current row of an operand.
  std::string rowPointer(unsigned operand);
  /// Returns the name of a file-scope array with the values of `op`.
  llvm::FailureOr<std::string> table(model::RowConstantOp op);
  /// Returns the name of a step block field, declared as `type`.
  std::string stepField(const char *type, llvm::StringRef field);
  /// Returns a scalar (f32 or i1) as a name or literal. Declares it outside the
  /// row loop if it is the same in every row.
  llvm::FailureOr<std::string> scalar(mlir::Value value);

  /// Adds lines to the row loop.
  void add(const Statements &lines) {
    perRow.insert(perRow.end(), lines.begin(), lines.end());
  }
  /// Returns the function's text. Must be called after all other members.
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
  std::map<unsigned, std::string> pointers; ///< by operand index
  llvm::DenseMap<unsigned, std::string> rowPointers;
  llvm::DenseMap<mlir::Value, std::string> names, tableNames, scalars;
  llvm::DenseMap<mlir::Value, bool> invariant;
  llvm::StringMap<unsigned> counters;
  llvm::StringMap<std::string> stepFields;
};

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_KERNELTEXT_H
