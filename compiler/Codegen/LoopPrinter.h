// SPDX-License-Identifier: MIT

// Prints one column loop of a kernel: the expressions of the values that it
// reduces or stores. A value with one use is printed inside the expression that
// uses it. A value with several uses, or with a long expression, gets a name.

#ifndef QLORA_COMPILER_CODEGEN_LOOPPRINTER_H
#define QLORA_COMPILER_CODEGEN_LOOPPRINTER_H

#include "compiler/Codegen/KernelText.h"
#include "compiler/Codegen/RowPlan.h"

namespace qlora {

class LoopPrinter {
public:
  LoopPrinter(KernelText &text, const RowPlan &plan, unsigned number)
      : text(text), plan(plan), number(number) {}

  /// Prints a loop that computes reductions: RowLoop::reductions is not empty.
  llvm::LogicalResult printReductions();
  /// Prints the loop that stores the results with one value per column, then
  /// the stores of results with one value per row. results[i] is the kernel's
  /// operand `firstResult + i`.
  llvm::LogicalResult printStores(mlir::OperandRange results,
                                  unsigned firstResult);

private:
  /// The column that an expression computes. In a loop without rotations it is
  /// `c`. In a loop with rotations each iteration computes two columns: one of
  /// the first half of the rotated columns, one of the second.
  enum Half : unsigned { kWhole, kLow, kHigh };
  using Key = std::pair<mlir::Value, unsigned>;

  llvm::ArrayRef<Half> halves() const;
  /// True if rotations cover only some of the columns.
  bool turnsPart() const;
  std::string column(Half half) const;      ///< of the current lane
  std::string firstColumn(Half half) const; ///< of lane 0
  bool isKeptEarlier(mlir::Value value) const;
  void countUses(mlir::Value value, Half half);
  void print();

  llvm::FailureOr<std::string> row(mlir::Value value, Half half);
  llvm::FailureOr<Expression> expression(mlir::Value value, Half half);
  llvm::FailureOr<Expression> opExpression(mlir::Operation *op, Half half);
  std::string draw(model::RowRandomOp op, Half half);
  std::optional<Expression> keepExpression(mlir::Operation *op, Half half);
  llvm::FailureOr<std::string> lastUse(mlir::Value value, Half half);
  bool isInLanes(unsigned operand) const;
  Expression loadOperand(unsigned argument, Half half);
  llvm::LogicalResult storeResult(mlir::Value result, unsigned operand,
                                  Half half, Statements &stores);
  llvm::LogicalResult storeNumber(mlir::Value result, unsigned operand);
  void chooseLanes();
  std::string bind(mlir::Value value, Half half, const std::string &equal);
  bool needsName(mlir::Value value, Half half, const Expression &) const;

  KernelText &text;
  const RowPlan &plan;
  unsigned number;

  ColumnLoop loop;
  llvm::SmallVector<std::string> laneResults; ///< filled by storeResult
  llvm::DenseMap<Key, unsigned> uses;
  llvm::DenseMap<Key, std::string> known;
  llvm::StringMap<std::string> bound; ///< names by expression
};

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_LOOPPRINTER_H
