// SPDX-License-Identifier: MIT

// Prints generated kernels as readable C++. A kernel is a pure function over a
// range of rows (runtime/ABI/kernel.h). Its body is printed as the column loops
// of RowPlan.h, in the C++ dialect of a KernelSpelling. For an example see
// compiler/Codegen/README.md.
//
// The text fixes every rounding: it fixes the order of reductions, and it is
// compiled without contraction and without -ffast-math. The same op gives the
// same text.

#ifndef QLORA_COMPILER_CODEGEN_KERNELFUNCTION_H
#define QLORA_COMPILER_CODEGEN_KERNELFUNCTION_H

#include "compiler/Codegen/KernelSpelling.h"
#include "dialects/Program/Program.h"

namespace qlora {

/// Returns the C++ function name of a generated kernel: its symbol followed by
/// "_kernel". Characters that C++ does not allow are replaced by their code.
std::string functionName(program::KernelOp kernel);

/// Returns the kernel as one C++ function, without includes. Emits an error for
/// a body or attributes that cannot be printed.
llvm::FailureOr<std::string> printKernel(program::KernelOp kernel,
                                         const KernelSpelling &spelling);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_KERNELFUNCTION_H
