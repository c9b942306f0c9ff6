// SPDX-License-Identifier: MIT

// The C++ text of one arithmetic op of a row region. Host C++ and CUDA C++ use
// the same text: it calls only functions of runtime/Kernels/Rows.h.

#ifndef QLORA_COMPILER_CODEGEN_ROWEXPRESSIONS_H
#define QLORA_COMPILER_CODEGEN_ROWEXPRESSIONS_H

#include <string>

#include "mlir/IR/Operation.h"

namespace qlora {

/// A C++ expression. If it is not atomic, it needs parentheses as an operand.
struct Expression {
  std::string text;
  bool isAtomic = false;

  std::string asOperand() const { return isAtomic ? text : "(" + text + ")"; }
};

/// Returns a float literal that reads back as exactly `value`.
std::string floatLiteral(float value);

/// Returns the expression of an elementwise op. `operands` are texts for use
/// inside an expression. Emits an error for an op without an expression.
llvm::FailureOr<Expression>
elementwiseExpression(mlir::Operation *op,
                      llvm::ArrayRef<std::string> operands);

/// True if an operand's text occurs more than once in the expression. The
/// operand should then have a name.
bool repeatsOperands(mlir::Operation *op);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_ROWEXPRESSIONS_H
