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
    Creates one buffer per value, with three exceptions. Results of a split and
    operands of a concat are ranges of the wide tensor's buffer. A result takes
    over the buffer of an operand that it may overwrite and that has no later
    use. An op that can accumulate writes its gradient into the gradient arena
    directly. An accumulate step becomes two entries, with and without
    collectives. plan-memory assigns the offsets in the activation arena.

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
  let summary = "choose the first row of Kernels.def that accepts a launch";
  let description = [{
    Each launch of a library op gets an implementation, and a workspace that is
    large enough for the implementation and all later rows that accept the
    launch. KernelRow::tune chooses how the kernel splits its work. Rows with
    KernelRow::isRoomy may use a large workspace unless `workspaces` is small.
    The workspace arena gets the target's alignment.
  }];
  let options = [
    TargetOption,
    Option<"workspaces", "workspaces", "::qlora::WorkspaceSize",
           "::qlora::WorkspaceSize::kModest",
           "how large workspaces may be", [{::llvm::cl::values(
             clEnumValN(::qlora::WorkspaceSize::kSmall, "small", ""),
             clEnumValN(::qlora::WorkspaceSize::kModest, "modest", ""),
             clEnumValN(::qlora::WorkspaceSize::kLarge, "large", ""))}]>,
  ];
}

def AssignQueues : Pass<"assign-queues", "::mlir::ModuleOp"> {
  let summary = "assign commands to queues, with events between queues";
  let description = [{
    A collective runs on the communication queue, after an event that the
    compute queue records when the collective's buffer is complete. The compute
    queue waits for a collective before it uses the result, and for all
    collectives at the end of the entry.

    Some launches only prepare a weight: they read frozen parameters (gathered
    or not) and write one scratch buffer. If the target runs kernels of the copy
    queue concurrently, these launches run on the copy queue. They start early
    enough to be hidden by arithmetic. A launch does not start before the first
    reader of the buffer that the launch before it prepared. Redundant waits are
    omitted.
  }];
  let options = [
    TargetOption, ProfileOption,
    Option<"inOrder", "in-order", "bool", "false",
           "keep kernels on the compute queue">,
  ];
  let statistics = [
    Statistic<"launchesAhead", "ahead", "launches on the copy queue">,
    Statistic<"eventsAdded", "events", "events between queues">,
  ];
}

def PlanMemory : Pass<"plan-memory", "::mlir::ModuleOp"> {
  let summary = "assign offsets in the arenas from lifetimes";
  let description = [{
    A buffer of the activation and workspace arenas lives from its first to its
    last command. If a command of another queue uses the buffer, the lifetime
    also covers all compute commands that may run concurrently with that
    command. Buffers with disjoint lifetimes may overlap. Buffers start at
    multiples of their arena's alignment. The arenas are as large as the largest
    entry needs.
  }];
}

#endif // QLORA_COMPILER_SCHEDULE_PASSES_TD
