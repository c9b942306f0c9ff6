// SPDX-License-Identifier: MIT

// The passes that shard work over ranks, in pipeline order;
// compiler/Passes.td includes it.

#ifndef QLORA_COMPILER_PARTITION_PASSES_TD
#define QLORA_COMPILER_PARTITION_PASSES_TD

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

def ShardSequence : Pass<"shard-sequence", "::mlir::ModuleOp"> {
  let summary = "shard tokens between tp matmuls (sequence parallelism)";
  let description = [{
    Replaces the `model.all_sum` of shard-matmuls by `model.reduce_scatter`, so
    that each rank has the sums of its tokens. Tokenwise ops then run on these
    tokens; `model.all_gather` restores all tokens before other ops.
  }];
  let dependentDialects = ["::qlora::program::ProgramDialect"];
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

#endif // QLORA_COMPILER_PARTITION_PASSES_TD
