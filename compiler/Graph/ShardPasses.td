// SPDX-License-Identifier: MIT

// The passes that shard work or weights over ranks, in pipeline order;
// compiler/Passes.td includes it.

#ifndef QLORA_COMPILER_GRAPH_SHARDPASSES_TD
#define QLORA_COMPILER_GRAPH_SHARDPASSES_TD

def ShardMatmuls : Pass<"shard-matmuls", "::mlir::ModuleOp"> {
  let summary = "shard matmuls by columns and rows (tensor parallelism)";
  let description = [{
    If no op needs all columns of a matmul's result, each of `ranks` ranks
    computes a range of them, with a slice of the weight. Matmuls that consume
    the result use slices of the other dimension, and `model.all_sum` adds their
    partial sums. A frozen parameter gets the type of a slice; of a trained one,
    each rank uses a range. Every rank computes ops that cannot be sharded.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
  let options = [
    Option<"ranks", "ranks", "int64_t", "1", "tensor-parallel ranks">,
  ];
}

def ShardContext : Pass<"shard-context", "::mlir::ModuleOp"> {
  let summary = "shard the tokens of each sequence (context parallelism)";
  let description = [{
    Each of `ranks` ranks holds consecutive tokens of each sequence. An op that
    reads other tokens but treats columns separately (attention, by heads) runs
    on all tokens and a shard of the columns; `model.all_to_all` exchanges
    tokens for columns before it and back after it.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
  let options = [
    Option<"ranks", "ranks", "int64_t", "1", "context-parallel ranks">,
  ];
}

def ShardSequence : Pass<"shard-sequence", "::mlir::ModuleOp"> {
  let summary = "shard tokens between tp matmuls (sequence parallelism)";
  let description = [{
    Replaces the `model.all_sum` of shard-matmuls by `model.reduce_scatter`, so
    that each rank has the sums of its tokens. Tokenwise ops then run on these
    tokens; `model.all_gather` restores all tokens before other ops.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
}

def ShardExperts : Pass<"shard-experts", "::mlir::ModuleOp"> {
  let summary = "shard the experts of each layer (expert parallelism)";
  let description = [{
    Each of `ranks` ranks has some of the groups of every `GroupingOp`. Ops on
    rows sorted by group get the rows of all ranks from `model.all_gather`. Ops
    that leave the groups give partial sums, which `model.reduce_scatter` adds.
    A frozen weight with groups gets the type of a slice; a trained one is whole
    on each rank.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
  let options = [
    Option<"ranks", "ranks", "int64_t", "1", "expert-parallel ranks">,
  ];
}

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

def ShardTrainable : Pass<"shard-trainable", "::mlir::ModuleOp"> {
  let summary = "shard trainable weights, their gradients and states";
  let description = [{
    Every trained parameter of two dimensions or more gets a `piece`: a rank's
    1/`ranks` of its bytes, rounded up. Without `adapters`, parameters that have
    no file stay whole. Parameters computed from other weights or used in ranges
    always stay whole. It is an error if an optimizer cannot update shards.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
  let options = [
    Option<"ranks", "ranks", "int64_t", "1",
           "ranks that shard trainable parameters">,
    Option<"adapters", "adapters", "bool", "false",
           "shard parameters without a file too">,
  ];
}

def ShardVocabulary : Pass<"shard-vocabulary", "::mlir::ModuleOp"> {
  let summary = "shard the embedding and the LM head by token ids";
  let description = [{
    A frozen table that a `TableOp` reads (an embedding, the LM head) is sharded
    equally by rows: its parameter gets a `piece`. The tokens of all ranks are
    gathered, each rank uses its rows of the table, and gets back the results
    for its own tokens. These tables are left to place-frozen-weights:
    * tables that are quantized, or that an op needs whole;
    * with `form` auto, tables with fewer bytes than this exchange;
    * with `offload-tables`, tables that go to host memory.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
  let options = [
    Option<"form", "form", "std::string", "\"auto\"",
           "auto: if it exchanges less; true: always; false: never">,
    Option<"shards", "shards", "int64_t", "1", "ranks that shard the base">,
    Option<"offloadTables", "offload-tables", "bool", "false",
           "put frozen weights that are read by rows in the host arena">,
  ];
  let statistics = [
    Statistic<"tablesDivided", "divided", "ops over sharded tables">,
  ];
}

def PlaceFrozenWeights : Pass<"place-frozen-weights", "::mlir::ModuleOp"> {
  let summary = "shard or offload frozen weights, and gather them before use";
  let description = [{
    Every frozen parameter of two dimensions or more gets a `piece`: a rank's
    1/`shards` of its stored bytes, rounded up. `model.gather_weight` gathers
    it, as it does parameters of shard-trainable, before the first of nearby
    uses: once in the forward of a layer, and once in its backward. With
    `keep-trained` trained parameters are gathered once per step.

    With `offload-tables` parameters that are only read by rows are whole in
    host memory (`on_host`). With `offload-base` all frozen matrices are in host
    memory. A matrix that some op reads by rows is whole there; other matrices
    are sharded there, and gathered from there. Up to `room` bytes of frozen
    weights stay on the GPU instead. The rest of `room` keeps gathered weights
    for the backward.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
  let options = [
    Option<"shards", "shards", "int64_t", "1", "ranks that shard the base">,
    Option<"offloadTables", "offload-tables", "bool", "false",
           "put frozen weights that are read by rows in the host arena">,
    Option<"offloadBase", "offload-base", "bool", "false",
           "put frozen matrices in the host arena">,
    Option<"keepTrained", "keep-trained", "bool", "false",
           "gather trained weights once, and keep them for the backward">,
    Option<"room", "room", "int64_t", "0",
           "GPU bytes for frozen weights that are not offloaded or gathered "
           "again">,
  ];
}

def ScheduleGathers : Pass<"schedule-gathers", "::qlora::train::StepOp"> {
  let summary = "gather weights one layer ahead";
  let description = [{
    Moves a gather earlier as long as all gathered weights still in use, with
    its own, need at most the memory of the largest layer's weights plus one
    weight. So the next layer's weights arrive while a layer computes. Gathers
    keep their order. No gather moves from the backward to the forward.
  }];
  let statistics = [
    Statistic<"gathersAhead", "ahead", "gathers before their first reader">,
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

#endif // QLORA_COMPILER_GRAPH_SHARDPASSES_TD
