// SPDX-License-Identifier: MIT

// All passes: each folder describes its own. Pipeline.cpp has the order with
// the reasons.

#ifndef QLORA_COMPILER_PASSES_TD
#define QLORA_COMPILER_PASSES_TD

include "mlir/Pass/PassBase.td"

defvar TargetOption =
    Option<"target", "target", "std::string", "\"cpu\"", "cpu or cuda">;
defvar ProfileOption =
    Option<"profile", "device-profile", "std::string", "\"\"",
           "a known GPU, or device.json of qlora-run --calibrate">;

include "compiler/Adapt/Passes.td"
include "compiler/Partition/Passes.td"
include "compiler/Stages/Passes.td"
include "compiler/Differentiate/Passes.td"
include "compiler/Memory/Passes.td"
include "compiler/Optimize/Passes.td"
include "compiler/Place/Passes.td"
include "compiler/Exchange/Passes.td"
include "compiler/Schedule/Passes.td"

def VerifyPhase : Pass<"verify-phase", "::mlir::ModuleOp"> {
  let summary = "check that the IR has no ops of earlier phases";
  let description = [{
    Runs in every compilation. Runs the verifier of each op, and checks:
    * after `adapt`, shapes are static;
    * after `step`, no function is left, and the module has one update step;
    * after `optimize`, every row op is a `model.rows`, and `train.layout` is
      set;
    * after `program`, all ops are of the program dialect, every buffer has an
      offset, and no command reads memory before it is written.
  }];
  let options = [
    Option<"phase", "phase", "std::string", "\"\"",
           "adapt, step, optimize or program">,
  ];
}

//===----------------------------------------------------------------------===//
// testing
//===----------------------------------------------------------------------===//

def PrintKernels : Pass<"print-kernels", "::mlir::ModuleOp"> {
  let summary = "write the generated kernels as C++ to stdout";
  let description = [{
    Writes the output of `qloracc --emit=cpp` (or `--emit=cuda`) to standard
    output, for text tests.
  }];
  let options = [
    TargetOption,
  ];
}

def PrintPlan : Pass<"print-plan", "::mlir::ModuleOp"> {
  let summary = "write the plan of a program as JSON to stdout";
  let description = [{
    Writes the content of `qloracc --plan-report plan.json` except times, for tests:
    arenas, entries, and the decisions of earlier passes.
  }];
}

#endif // QLORA_COMPILER_PASSES_TD
