// SPDX-License-Identifier: MIT

// The passes of pipeline parallelism, in pipeline order;
// compiler/Passes.td includes it.

#ifndef QLORA_COMPILER_STAGES_PASSES_TD
#define QLORA_COMPILER_STAGES_PASSES_TD

def PartitionPipeline : Pass<"partition-pipeline", "::mlir::ModuleOp"> {
  let summary = "cut the forward down to one pipeline stage";
  let description = [{
    Assigns the layers to `stages` stages, with about equal work or according to
    `device-map`, and keeps the layers of `stage`, in `parts` virtual stages.
    `model.receive` gets values from earlier stages, and `model.send` sends
    values to later ones. Unused frozen weights are erased; unused trained ones
    are marked `elsewhere`.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
  let options = [
    Option<"stages", "stages", "int64_t", "1", "stages of the pipeline">,
    Option<"stage", "stage", "int64_t", "0", "index of the stage to keep">,
    Option<"parts", "parts", "int64_t", "1",
           "virtual stages per stage (PipelineOrder.h)">,
    ListOption<"speeds", "speeds", "int64_t",
               "relative speeds of the stages; none: equal">,
    Option<"deviceMap", "device-map", "std::string", "\"balanced\"",
           "assignment of layers (StagePartition.h)">,
    Option<"memoryLimit", "memory-limit", "int64_t", "0",
           "bytes of a stage, for `sequential`">,
    TargetOption, ProfileOption,
  ];
}

def UnrollMicroBatches
    : Pass<"unroll-micro-batches", "::qlora::train::StepOp"> {
  let summary = "interleave forwards and backwards of a stage's chunks";
  let description = [{
    The step gets a batch of `chunks` times as many rows. For each chunk and
    virtual stage, it has one forward and one backward. Their order is 1F1B, or
    with several virtual stages, the interleaved order of PipelineOrder.h.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
  let options = [
    Option<"chunks", "chunks", "int64_t", "1", "chunks of the batch">,
    Option<"lines", "lines", "int64_t", "1",
           "runs of sequences; a chunk has equal shares of all runs">,
    Option<"parts", "parts", "int64_t", "1",
           "virtual stages per stage (PipelineOrder.h)">,
    Option<"allForwardsFirst", "all-forwards-first", "bool", "false",
           "use GPipe's order">,
  ];
}

#endif // QLORA_COMPILER_STAGES_PASSES_TD
