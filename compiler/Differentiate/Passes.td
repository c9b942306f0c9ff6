// SPDX-License-Identifier: MIT

// The passes that build the steps from the forward graph, in pipeline order;
// compiler/Passes.td includes it.

#ifndef QLORA_COMPILER_DIFFERENTIATE_PASSES_TD
#define QLORA_COMPILER_DIFFERENTIATE_PASSES_TD

def BuildTrainStep : Pass<"build-train-step", "::mlir::ModuleOp"> {
  let summary = "reverse mode: forward functions become train.steps";
  let description = [{
    Makes an `accumulate` and an `evaluate` step (without dropout) for each
    `@forward_<batch>x<length>`, and one `update`. Saves every activation that
    the backward reads. A trainable parameter without a gradient is an error.
    With `pieces` each rank updates its shard of the flat arena, keeps only its
    optimizer states, and all-gathers the updated shards (ZeRO-1). With
    `runRanks` the flat arenas are divisible by that many ranks.
  }];
  let options = [Option<"pieces", "pieces", "int64_t", "1",
                        "ranks that shard the updates; 1: none">,
                 Option<"runRanks", "run-ranks", "int64_t", "0",
                        "ranks of a run; 0: any number">];
  let dependentDialects = ["::qlora::train::TrainDialect"];
}

def FuseAccumulate : Pass<"fuse-accumulate", "::qlora::train::StepOp"> {
  let summary = "add gradients inside the GEMMs that produce them";
  let description = [{
    `add(g, op)` becomes `op init g` if op can accumulate, and if `add` is the
    only reader of both operands.
  }];
}

#endif // QLORA_COMPILER_DIFFERENTIATE_PASSES_TD
