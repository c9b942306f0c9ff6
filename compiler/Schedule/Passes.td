// SPDX-License-Identifier: MIT

// The passes over programs, in pipeline order. compiler/Passes.td includes it.

#ifndef QLORA_COMPILER_SCHEDULE_PASSES_TD
#define QLORA_COMPILER_SCHEDULE_PASSES_TD

//===----------------------------------------------------------------------===//
// program
//===----------------------------------------------------------------------===//

def LowerToProgram : Pass<"lower-to-program", "::mlir::ModuleOp"> {
  let summary = "values get buffers, ops become commands";
  let description = [{
    One buffer per value, but: the parts of a split or concat are ranges of the
    whole, a result that may overwrite an operand which dies takes over its buffer,
    and a gradient is written straight into the gradient arena where its op can
    add. An accumulate step becomes two entries, with and without collectives.
    Places in the activation arena are left to plan-memory.

    ```mlir
    // before: %y = model.linear %x, %w init %y0 : ...
    // after:  program.launch @matmul(%x read bf16, %w read bf16,
    //                                %y0 read_write bf16) ...
    ```
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
  let options = [
    Option<"offloadStates", "offload-states", "bool", "false",
           "the state arena is in host memory">,
  ];
}

def SelectKernels : Pass<"select-kernels", "::mlir::ModuleOp"> {
  let summary = "the first row of Kernels.def that can do it";
  let description = [{
    Each launch of a library op gets an implementation and the workspace that
    the implementation and those after it promise to stay within. It cuts the
    work as it likes (KernelRow::tune), and may have a large workspace
    (KernelRow::isRoomy) unless workspaces are to be small. The workspace
    arena gets the target's alignment.
  }];
  let options = [
    TargetOption,
    Option<"workspaces", "workspaces", "::qlora::WorkspaceSize",
           "::qlora::WorkspaceSize::kModest",
           "how large they may be to make a kernel faster", [{::llvm::cl::values(
             clEnumValN(::qlora::WorkspaceSize::kSmall, "small", ""),
             clEnumValN(::qlora::WorkspaceSize::kModest, "modest", ""),
             clEnumValN(::qlora::WorkspaceSize::kLarge, "large", ""))}]>,
  ];
}

def AssignQueues : Pass<"assign-queues", "::mlir::ModuleOp"> {
  let summary = "which queue runs a command, with events between queues";
  let description = [{
    Collectives go to the communication queue, after an event that the compute
    queue records when their buffer is complete; the compute queue waits for
    all of them at the end of the entry.

    On a target that runs kernels of the copy queue beside the compute queue,
    launches that read frozen parameters only, which may be gathered, and write
    one scratch buffer go
    there, ahead of the buffer's first reader by as much arithmetic as hides
    them, and at most to the first reader of the buffer before. A wait that
    another one implies is left out.
  }];
  let options = [
    TargetOption, ProfileOption,
    Option<"inOrder", "in-order", "bool", "false",
           "kernels stay on the compute queue">,
  ];
  let statistics = [
    Statistic<"launchesAhead", "ahead", "launches beside the compute queue">,
    Statistic<"eventsAdded", "events", "events between queues">,
  ];
}

def PlanMemory : Pass<"plan-memory", "::mlir::ModuleOp"> {
  let summary = "lifetimes become offsets in the arenas";
  let description = [{
    Buffers of the activation and workspace arenas live from their first to
    their last command, or, where one of another queue uses them, from where
    its events let that one start to where the compute queue has waited for
    it; those that do not live together may overlap. They start at multiples
    of their arena's alignment. The arenas are as large as the largest entry
    needs.
  }];
}

#endif // QLORA_COMPILER_SCHEDULE_PASSES_TD
