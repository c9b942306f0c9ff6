// SPDX-License-Identifier: MIT

// Writes the tables of train.so (runtime/ABI/module.h) as assembler text, and
// `qlora_module_query`, its only exported symbol.
//
// Tables keep the order of the module's ops. Equal strings, constants and
// launches are written once.

#ifndef QLORA_COMPILER_CODEGEN_EMITMODULE_H
#define QLORA_COMPILER_CODEGEN_EMITMODULE_H

#include <string>

#include "compiler/Codegen/Target.h"
#include "mlir/IR/BuiltinOps.h"

namespace qlora {

/// Returns the assembler text for `module`. All its buffers must have an
/// offset, and all library kernels an implementation. The text refers to
/// generated kernels by functionName(), and embeds the device images, each
/// followed by a NUL because PTX needs one. Emits an error for values that do
/// not fit into a table.
llvm::FailureOr<std::string> emitModule(mlir::ModuleOp module,
                                        const Target &target,
                                        const CompiledKernels &kernels);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_EMITMODULE_H
