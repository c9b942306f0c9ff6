// SPDX-License-Identifier: MIT

// print-plan: prints `--plan-report plan.json` without times.

#include "compiler/Passes.h"
#include "compiler/Report/Report.h"

namespace qlora {
#define GEN_PASS_DEF_PRINTPLAN
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class PrintPlanPass : public qlora::impl::PrintPlanBase<PrintPlanPass> {
  void runOnOperation() override {
    llvm::outs() << qlora::planJson(getOperation(), /*withDecisions=*/true)
                 << "\n";
  }
};
} // namespace
