// SPDX-License-Identifier: MIT

// print-kernels: prints each generated kernel with KernelFunction.h.

#include "compiler/Codegen/Codegen.h"
#include "compiler/Passes.h"

namespace qlora {
#define GEN_PASS_DEF_PRINTKERNELS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class PrintKernelsPass
    : public qlora::impl::PrintKernelsBase<PrintKernelsPass> {
public:
  using PrintKernelsBase::PrintKernelsBase;

private:
  void runOnOperation() override {
    const qlora::KernelSpelling *spelling = qlora::spellingOf(target);
    if (!spelling) {
      getOperation().emitError("expects cpu or cuda as target, but got '")
          << target << "'";
      return signalPassFailure();
    }
    if (failed(qlora::printKernels(getOperation(), *spelling, llvm::outs())))
      signalPassFailure();
  }
};
} // namespace
