// SPDX-License-Identifier: MIT

// Compiles a model (model.mlir) to a planned program: runs the phases, and fits
// the plan into the memory limit.

#ifndef QLORA_COMPILER_DRIVER_H
#define QLORA_COMPILER_DRIVER_H

#include "compiler/Pipeline.h"
#include "compiler/Support/TargetTraits.h"

#include "mlir/IR/OwningOpRef.h"

namespace qlora {

/// Called with the module after each phase (`--emit`, `--dump-phases`).
/// Returning false ends the compile there.
using PhaseHook =
    llvm::function_ref<bool(llvm::StringRef phase, mlir::ModuleOp)>;

class Driver {
public:
  Driver(mlir::MLIRContext &context, const CompileOptions &options)
      : context(context), options(options),
        traits(targetTraits(options.target).value_or(TargetTraits{})) {}

  /// Runs all phases on `module`. On success `module` is the program; if the
  /// hook ended the compile, it is the module after that phase. Errors are
  /// diagnostics of the context.
  mlir::LogicalResult run(mlir::OwningOpRef<mlir::ModuleOp> &module,
                          PhaseHook afterPhase);

  /// Runs all phases to find out whether the model fits the memory limit.
  /// Returns false, without a diagnostic, if no plan fits.
  mlir::FailureOr<bool> plan(mlir::OwningOpRef<mlir::ModuleOp> &module);
  /// Returns the bytes of the smallest plan, after plan() returned false. If
  /// they are far above the limit, they may be a few percent too large.
  int64_t smallestBytes() const { return smallest; }

private:
  mlir::LogicalResult runPhase(const Phase &phase, mlir::ModuleOp module,
                               const MemoryBudget &budget);
  mlir::LogicalResult optimizeAndPlan(mlir::ModuleOp module,
                                      const MemoryBudget &budget);
  llvm::SmallVector<MemoryBudget> concessions() const;
  mlir::LogicalResult refuseHopeless(mlir::ModuleOp step);
  mlir::LogicalResult tryBudget(mlir::ModuleOp step, const MemoryBudget &budget,
                                mlir::OwningOpRef<mlir::ModuleOp> &best);
  mlir::LogicalResult keepWeights(mlir::ModuleOp step,
                                  mlir::OwningOpRef<mlir::ModuleOp> &best);
  mlir::LogicalResult joinIfRoomy(mlir::ModuleOp step,
                                  mlir::OwningOpRef<mlir::ModuleOp> &best);
  mlir::LogicalResult shrink(mlir::ModuleOp step,
                             mlir::OwningOpRef<mlir::ModuleOp> &best);
  mlir::LogicalResult fitMemory(mlir::ModuleOp step);
  mlir::LogicalResult chooseBudget(mlir::ModuleOp module);
  mlir::LogicalResult enableRemarks();
  MemoryBudget leastBudget() const;
  std::string curedByOffload(mlir::ModuleOp step);
  bool isAboveHostLimit(mlir::ModuleOp program) const;
  mlir::LogicalResult checkHostLimit(mlir::ModuleOp program) const;
  mlir::LogicalResult refuseLimit(mlir::ModuleOp step, mlir::ModuleOp program);

  mlir::MLIRContext &context;
  const CompileOptions &options;
  const TargetTraits traits;
  MemoryBudget chosen;
  bool explainsLimit = true;
  int64_t smallest = 0; ///< bytes of the smallest plan, if over the limit
};

} // namespace qlora

#endif // QLORA_COMPILER_DRIVER_H
