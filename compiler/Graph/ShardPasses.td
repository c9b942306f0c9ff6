// SPDX-License-Identifier: MIT

// The passes that divide work or weights among ranks, in pipeline order;
// compiler/Passes.td includes it.

#ifndef QLORA_COMPILER_GRAPH_SHARDPASSES_TD
#define QLORA_COMPILER_GRAPH_SHARDPASSES_TD

def ShardMatmuls : Pass<"shard-matmuls", "::mlir::ModuleOp"> {
  let summary = "ranks share each product (tensor parallelism)";
  let description = [{
    Among `ranks` products whose results nobody needs whole make a part of their
    columns each, of a slice of the weight; products of these add up, by
    `model.all_sum`, what they make of slices of the other dimension. A frozen
    parameter gets the type of a slice, and a trained one is used in parts. What
    nobody can divide is computed by all.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
  let options = [
    Option<"ranks", "ranks", "int64_t", "1", "ranks that share each product">,
  ];
}

def ShardContext : Pass<"shard-context", "::mlir::ModuleOp"> {
  let summary = "ranks share each line (context parallelism)";
  let description = [{
    Each of `ranks` ranks has a part of the tokens of each line. Where an op looks
    at other tokens, but at some columns only (attention, by heads), ranks
    exchange these for tokens before and after it, by `model.all_to_all`: each
    does it for all tokens and a part of the columns.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
  let options = [
    Option<"ranks", "ranks", "int64_t", "1", "ranks that share each line">,
  ];
}

def ShardSequence : Pass<"shard-sequence", "::mlir::ModuleOp"> {
  let summary = "ranks share the tokens between products (sequence parallelism)";
  let description = [{
    Of what shard-matmuls adds up each rank gets the sums of its tokens, by
    `model.reduce_scatter` in place of `model.all_sum`, does with them what is done
    for each token by itself, and `model.all_gather` brings all of them together
    where something else is done.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
}

def ShardExperts : Pass<"shard-experts", "::mlir::ModuleOp"> {
  let summary = "ranks share the experts of each layer (expert parallelism)";
  let description = [{
    Each of `ranks` ranks has a part of the groups of every `GroupingOp`. What
    reads rows sorted by group is of the rows of all ranks, which
    `model.all_gather` brings, and what leaves the groups is a summand, which
    `model.reduce_scatter` adds up. A frozen weight of groups gets the type of a
    slice, and a trained one is whole on each rank.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
  let options = [
    Option<"ranks", "ranks", "int64_t", "1", "ranks that share the experts">,
  ];
}

def PartitionPipeline : Pass<"partition-pipeline", "::mlir::ModuleOp"> {
  let summary = "forward functions of one stage (pipeline parallelism)";
  let description = [{
    Of `stages` stages, which have about as much to do or what `device-map` says,
    `stage` keeps its layers, in `parts` parts: what earlier parts make for one
    arrives by `model.receive`, and what later ones need leaves by `model.send`.
    Frozen weights that it does not use are gone, trained ones are marked
    `elsewhere`.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
  let options = [
    Option<"stages", "stages", "int64_t", "1", "of the pipeline">,
    Option<"stage", "stage", "int64_t", "0", "which of them">,
    Option<"parts", "parts", "int64_t", "1", "of a stage (PipelineOrder.h)">,
    ListOption<"speeds", "speeds", "int64_t",
               "of stages beside each other; none: all are equal">,
    Option<"deviceMap", "device-map", "std::string", "\"balanced\"",
           "how layers are dealt (StagePartition.h)">,
    Option<"memoryLimit", "memory-limit", "int64_t", "0",
           "bytes of a stage, for `sequential`">,
    TargetOption, ProfileOption,
  ];
}

def ShardTrainable : Pass<"shard-trainable", "::mlir::ModuleOp"> {
  let summary = "trained weights, their gradients and states in pieces";
  let description = [{
    Every trained parameter of two dimensions or more that has a file, with
    `adapters` every such one, gets a `piece`: the 1/`ranks` of its bytes that a
    rank holds, rounded up. What is computed from other weights, or used in parts,
    stays whole. It is an error where an optimizer cannot update pieces.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
  let options = [
    Option<"ranks", "ranks", "int64_t", "1",
           "ranks that hold what is trained together">,
    Option<"adapters", "adapters", "bool", "false",
           "also what no file has">,
  ];
}

def ShardVocabulary : Pass<"shard-vocabulary", "::mlir::ModuleOp"> {
  let summary = "tables of words in pieces, of which each rank does its part";
  let description = [{
    A frozen table that a `TableOp` reads (an embedding, the output head) is cut by
    rows, of which every rank has as many: its parameter gets a `piece`. Tokens of
    all ranks are gathered, each rank looks up or multiplies with what it has, and
    gets back what belongs to its own tokens. A table that an op has to have
    whole, or that is smaller than the rows of all ranks, is left to
    place-frozen-weights, as is with `offload-tables` what host memory takes.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
  let options = [
    Option<"form", "form", "std::string", "\"auto\"",
           "auto; true: whatever it costs; false: none">,
    Option<"shards", "shards", "int64_t", "1",
           "ranks that hold the base together">,
    Option<"offloadTables", "offload-tables", "bool", "false",
           "frozen weights that are read by rows go to the host arena">,
  ];
  let statistics = [
    Statistic<"tablesDivided", "divided", "ops over tables in pieces">,
  ];
}

def PlaceFrozenWeights : Pass<"place-frozen-weights", "::mlir::ModuleOp"> {
  let summary = "weights in pieces or in host memory, gathered where used";
  let description = [{
    Every frozen parameter of the model of two dimensions or more gets a `piece`,
    the 1/`shards` of its stored bytes that a rank holds, rounded up. A
    `model.gather_weight` makes it, and what shard-trainable divided, whole before
    the first of the uses that are near each other: in the forward of a layer, and
    once more in its backward; with `keep-trained` what is trained once a step.
    With `offload-tables` what is read by rows alone stays whole, `on_host`; with
    `offload-base` all of these are there, and those that are not read by rows in
    pieces, and are gathered from there but for rows. As many bytes of such weights
    as there is `room` for stay on the gpu instead; what is left of it goes to
    weights in pieces, whose gathers serve the backward too.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
  let options = [
    Option<"shards", "shards", "int64_t", "1",
           "ranks that hold the base together">,
    Option<"offloadTables", "offload-tables", "bool", "false",
           "frozen weights that are read by rows go to the host arena">,
    Option<"offloadBase", "offload-base", "bool", "false",
           "frozen weights of two dimensions or more go to the host arena">,
    Option<"keepTrained", "keep-trained", "bool", "false",
           "what is trained is gathered once, and kept for the backward">,
    Option<"room", "room", "int64_t", "0",
           "bytes for frozen weights that stay on the card, or once gathered">,
  ];
}

def ScheduleGathers : Pass<"schedule-gathers", "::qlora::train::StepOp"> {
  let summary = "weights are gathered one layer ahead";
  let description = [{
    A gather moves up as far as what is gathered and not used up takes no more
    memory, with its own, than the largest layer's weights and one more: as those
    of one layer are used up, those of the next arrive. Their order stays, and those of the
    backward stay in it.
  }];
  let statistics = [
    Statistic<"gathersAhead", "ahead", "gathers before their first reader">,
  ];
}

def UnrollMicroBatches
    : Pass<"unroll-micro-batches", "::qlora::train::StepOp"> {
  let summary = "a stage's forwards and backwards of chunks in turn";
  let description = [{
    The step becomes that of a batch of `chunks` times as many rows: one forward
    and one backward for each and each of the `parts` of a stage, in the order
    1F1B, or that of PipelineOrder.h for more parts than one.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
  let options = [
    Option<"chunks", "chunks", "int64_t", "1", "of the batch">,
    Option<"lines", "lines", "int64_t", "1",
           "runs of the batch's lines, of each of which a chunk has a part">,
    Option<"parts", "parts", "int64_t", "1", "of a stage (PipelineOrder.h)">,
    Option<"allForwardsFirst", "all-forwards-first", "bool", "false",
           "GPipe's order">,
  ];
}

#endif // QLORA_COMPILER_GRAPH_SHARDPASSES_TD
