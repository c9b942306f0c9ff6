// SPDX-License-Identifier: MIT

// The passes that shard or offload weights and gather them, in pipeline order;
// compiler/Passes.td includes it.

#ifndef QLORA_COMPILER_PLACE_PASSES_TD
#define QLORA_COMPILER_PLACE_PASSES_TD

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

#endif // QLORA_COMPILER_PLACE_PASSES_TD
