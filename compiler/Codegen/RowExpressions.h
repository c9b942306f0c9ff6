// SPDX-License-Identifier: MIT

// The C++ text of one arithmetic op of a row region. The text is the same in
// both dialects of C++: it calls only what runtime/Kernels/Rows.h defines.

#ifndef QLORA_COMPILER_CODEGEN_ROWEXPRESSIONS_H
#define QLORA_COMPILER_CODEGEN_ROWEXPRESSIONS_H

#include <string>

#include "mlir/IR/Operation.h"

namespace qlora {

/// A C++ expression. One that is not atomic needs parentheses inside another.
struct Expression {
  std::string text;
  bool isAtomic = false;

  std::string asOperand() const { return isAtomic ? text : "(" + text + ")"; }
};

/// A float literal that reads back as exactly `value`.
std::string floatLiteral(float value);

/// The expression of an elementwise op on `operands`, each given as text that
/// can stand inside an expression. Emits an error naming an op without one.
llvm::FailureOr<Expression>
elementwiseExpression(mlir::Operation *op,
                      llvm::ArrayRef<std::string> operands);

/// True where an operand's text occurs more than once in the expression, so
/// that it should be a name.
bool repeatsOperands(mlir::Operation *op);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_ROWEXPRESSIONS_H
