// SPDX-License-Identifier: MIT

// PEFT's modules_to_save: weights of the model that are trained in full, beside
// the adapters.

#ifndef QLORA_COMPILER_GRAPH_TRAINMODULES_H
#define QLORA_COMPILER_GRAPH_TRAINMODULES_H

#include "mlir/IR/BuiltinOps.h"

#include <string>

namespace qlora {

/// Makes the weights of the modules that `saved` names trainable: f32 in memory,
/// as stored in the file. What cannot be trained is an error, as is a name that
/// no module has.
mlir::LogicalResult trainModules(mlir::ModuleOp module,
                                 llvm::ArrayRef<std::string> saved);

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_TRAINMODULES_H
