// SPDX-License-Identifier: MIT

// The tables of train.so (runtime/ABI/module.h) as assembler text, and
// `qlora_module_query`, its one exported symbol.
//
// Tables keep the order of the module's ops. Equal strings, constants and
// launches are written once.

#ifndef QLORA_COMPILER_CODEGEN_EMITMODULE_H
#define QLORA_COMPILER_CODEGEN_EMITMODULE_H

#include <string>

#include "compiler/Codegen/Target.h"
#include "mlir/IR/BuiltinOps.h"

namespace qlora {

/// The text for `module`, whose buffers all have an offset and whose library
/// kernels an implementation. Refers to generated kernels by functionName, and
/// includes the bytes of the images, a NUL after each (which PTX needs). Emits
/// an error for what a table cannot say.
llvm::FailureOr<std::string> emitModule(mlir::ModuleOp module,
                                        const Target &target,
                                        const CompiledKernels &kernels);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_EMITMODULE_H
