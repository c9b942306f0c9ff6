// SPDX-License-Identifier: MIT

// print-kernels: shows what PrintKernel.h makes of each generated kernel.

#include "compiler/Codegen/Codegen.h"
#include "compiler/Passes.h"

namespace qlora {
#define GEN_PASS_DEF_PRINTKERNELS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class PrintKernelsPass
    : public qlora::impl::PrintKernelsBase<PrintKernelsPass> {
  void runOnOperation() override {
    if (failed(qlora::printKernels(getOperation(), llvm::outs())))
      signalPassFailure();
  }
};
} // namespace
