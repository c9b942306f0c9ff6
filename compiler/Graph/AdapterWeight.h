// SPDX-License-Identifier: MIT

// Weights of adapters, which no file has. Shared by attach-adapters and
// attach-expert-adapters.

#ifndef QLORA_COMPILER_GRAPH_ADAPTERWEIGHT_H
#define QLORA_COMPILER_GRAPH_ADAPTERWEIGHT_H

#include "dialects/Model/Model.h"

#include "mlir/IR/BuiltinOps.h"

#include <set>

namespace qlora {

/// The value of the f32 parameter that PEFT calls base_model.model.`name` and
/// that starts as `initial` says. The parameter is made on first use: several
/// lengths share one.
model::WeightOp adapterWeight(mlir::ModuleOp module, mlir::OpBuilder &builder,
                              mlir::Location loc, const llvm::Twine &name,
                              llvm::ArrayRef<int64_t> shape,
                              llvm::StringRef initial);

/// Paths of modules with an adapter, sorted, by the names that PEFT gives to A.
/// Of experts it is the module that PEFT wraps.
std::set<std::string> adaptedModules(mlir::ModuleOp root);

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_ADAPTERWEIGHT_H
