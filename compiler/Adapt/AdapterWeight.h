// SPDX-License-Identifier: MIT

// Creates adapter weights, for attach-adapters and attach-expert-adapters.

#ifndef QLORA_COMPILER_ADAPT_ADAPTERWEIGHT_H
#define QLORA_COMPILER_ADAPT_ADAPTERWEIGHT_H

#include "dialects/Model/Model.h"

#include "mlir/IR/BuiltinOps.h"

#include <set>

namespace qlora {

/// Returns the f32 parameter that PEFT names base_model.model.`name`, with
/// initial values `initial`. Creates it on first use: functions for several
/// lengths share it.
model::WeightOp adapterWeight(mlir::ModuleOp module, mlir::OpBuilder &builder,
                              mlir::Location loc, const llvm::Twine &name,
                              llvm::ArrayRef<int64_t> shape,
                              llvm::StringRef initial);

/// Returns the sorted paths of modules with an adapter, taken from the names of
/// the A's. For an adapter of experts, this is the module that PEFT wraps.
std::set<std::string> adaptedModules(mlir::ModuleOp root);

} // namespace qlora

#endif // QLORA_COMPILER_ADAPT_ADAPTERWEIGHT_H
