// SPDX-License-Identifier: MIT

// Lowering of one train.step to one program.entry, for lower-to-program.

#ifndef QLORA_COMPILER_SCHEDULE_STEPLOWERING_H
#define QLORA_COMPILER_SCHEDULE_STEPLOWERING_H

#include "compiler/Schedule/ParameterLayout.h"

namespace qlora {

inline constexpr int64_t kArenaAlignment = 64;

/// The input arena: ids, targets, positions and segments, i32 each, for the
/// largest variant's `tokens`. All variants use the same places.
int64_t inputBytes(int64_t tokens);
/// The result arena: loss sum, label count, grad norm, then `correct`.
int64_t resultBytes(int64_t tokens);

/// The `program.kernel`s of a module: one per library op and one per distinct
/// generated body, so that code does not grow with the number of layers.
class KernelSymbols {
public:
  explicit KernelSymbols(mlir::ModuleOp module)
      : builder(mlir::OpBuilder::atBlockEnd(module.getBody())),
        loc(module.getLoc()) {}

  mlir::FlatSymbolRefAttr library(llvm::StringRef op);
  /// `strides` and `dtypes` of the inputs, then of the results; `aligned` as
  /// program.kernel has it.
  mlir::FlatSymbolRefAttr generated(model::RowsOp rows,
                                    llvm::ArrayRef<int64_t> dtypes,
                                    llvm::ArrayRef<int64_t> strides,
                                    llvm::ArrayRef<int64_t> groups,
                                    int64_t aligned);

private:
  mlir::OpBuilder builder;
  mlir::Location loc;
  llvm::StringMap<mlir::FlatSymbolRefAttr> known;
  llvm::StringMap<unsigned> labels;
};

/// Lowers `step`; accumulate steps become ACCUMULATE_LAST. `tokens` is that
/// of the largest variant. Emits an error for an op that is no row, library,
/// view or train op.
llvm::FailureOr<program::EntryOp>
lowerStep(train::StepOp step, mlir::OpBuilder &builder,
          const ParameterLayout &layout, KernelSymbols &kernels,
          int64_t tokens);

} // namespace qlora

#endif // QLORA_COMPILER_SCHEDULE_STEPLOWERING_H
