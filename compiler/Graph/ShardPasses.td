// SPDX-License-Identifier: MIT

// The passes that divide weights among ranks, in pipeline order;
// compiler/Passes.td includes it.

#ifndef QLORA_COMPILER_GRAPH_SHARDPASSES_TD
#define QLORA_COMPILER_GRAPH_SHARDPASSES_TD

def ShardProducts : Pass<"shard-products", "::mlir::ModuleOp"> {
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

def ShardVocabulary : Pass<"shard-vocabulary", "::mlir::ModuleOp"> {
  let summary = "tables of words in pieces, of which each rank does its part";
  let description = [{
    A frozen table that a `TableOp` reads (an embedding, the output head) is cut by
    rows, of which every rank has as many: its parameter gets a `piece`. Tokens of
    all ranks are gathered, each rank looks up or multiplies with what it has, and
    gets back what belongs to its own tokens. A table that an op has to have
    whole, or that is smaller than the rows of all ranks, is left to
    assign-shards, as is with `offload-tables` what host memory takes.
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

def AssignShards : Pass<"assign-shards", "::mlir::ModuleOp"> {
  let summary = "frozen weights in pieces on the ranks, gathered where used";
  let description = [{
    Every frozen parameter of the model of two dimensions or more gets a `piece`,
    the 1/`shards` of its stored bytes that a rank holds, rounded up. A
    `model.gather_weight` makes it whole before the first of the uses that are
    near each other: in the forward of a layer, and once more in its backward.
    With `offload-tables` what host memory takes stays whole.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
  let options = [
    Option<"shards", "shards", "int64_t", "1",
           "ranks that hold the base together">,
    Option<"offloadTables", "offload-tables", "bool", "false",
           "frozen weights that are read by rows go to the host arena">,
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

#endif // QLORA_COMPILER_GRAPH_SHARDPASSES_TD
