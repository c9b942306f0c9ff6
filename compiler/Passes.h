// SPDX-License-Identifier: MIT

// Constructors, options and registration of all passes (Passes.td).

#ifndef QLORA_COMPILER_PASSES_H
#define QLORA_COMPILER_PASSES_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

#include "dialects/Program/Program.h"
#include "dialects/Train/Train.h"
#include "runtime/Kernels/WorkspaceSize.h"

namespace qlora {

#define GEN_PASS_DECL
#include "compiler/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "compiler/Passes.h.inc"

} // namespace qlora

#endif // QLORA_COMPILER_PASSES_H
