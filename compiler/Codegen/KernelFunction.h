// SPDX-License-Identifier: MIT

// Generated kernels as readable C++: the only printer. A kernel is a pure
// function over a range of rows (runtime/ABI/kernel.h); its body is printed
// as the column loops of RowPlan.h in the spelling of a KernelSpelling. An
// example is in compiler/Codegen/README.md.
//
// The text decides every number: reductions have a fixed order in it, and it
// is compiled without contraction and without -ffast-math. The same op gives
// the same text.

#ifndef QLORA_COMPILER_CODEGEN_KERNELFUNCTION_H
#define QLORA_COMPILER_CODEGEN_KERNELFUNCTION_H

#include "compiler/Codegen/KernelSpelling.h"
#include "dialects/Program/Program.h"

namespace qlora {

/// The C++ function name of a generated kernel: its symbol with "_kernel"
/// after it; characters that C++ does not have are written as their code.
std::string functionName(program::KernelOp kernel);

/// One function, without includes. Emits an error, and fails, for a body or
/// attributes that cannot be printed.
llvm::FailureOr<std::string>
printKernel(program::KernelOp kernel,
            const KernelSpelling &spelling);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_KERNELFUNCTION_H
