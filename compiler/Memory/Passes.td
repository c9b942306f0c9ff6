// SPDX-License-Identifier: MIT

// The passes that choose how values are kept for the backward, in pipeline
// order;
// compiler/Passes.td includes it.

#ifndef QLORA_COMPILER_MEMORY_PASSES_TD
#define QLORA_COMPILER_MEMORY_PASSES_TD

def EncodeActivations : Pass<"encode-activations", "::qlora::train::StepOp"> {
  let summary = "store activations for weight gradients in 8 bits";
  let description = [{
    A forward value of a row op is stored by `train.encode_rows` and decoded
    before its uses, if the backward uses it only in library ops that compute
    parameter gradients. With LoRA these are the inputs of adapters, before or
    after dropout. The recorded decision has the number of values and their
    bytes. `rematerialize` may still drop the codes and recompute them;
    gradients do not depend on that.
  }];
  let statistics = [
    Statistic<"values", "values", "values stored in 8 bits">,
    Statistic<"exactBytes", "exact-bytes", "bytes of encoded values before">,
    Statistic<"encodedBytes", "encoded-bytes", "bytes of values in 8 bits">,
  ];
}

def OffloadActivations
    : Pass<"offload-activations", "::qlora::train::StepOp"> {
  let summary = "keep activations for the backward in host memory";
  let description = [{
    Copies forward values of layers that the backward reads to the host
    (`train.copy_to_host`), and back one layer before their first use
    (`train.copy_from_host`). Values that cross layers come first, then those
    with the longest recomputation per byte. `values` chooses:
    * `hidden`: in each layer as many as can be copied while it is computed;
    * `crossing`: all values that cross layers, and no others;
    * `all`: every value that can be copied;
    * `none`.

    With `blocks` values inside a layer are not copied, because rematerialize
    drops them. With `weights` N the bus also carries the weights of each layer,
    of which each of N ranks copies a shard.
  }];
  let options = [
    Option<"values", "values", "std::string", "\"hidden\"",
           "none, hidden, crossing or all">,
    Option<"blocks", "blocks", "bool", "false", "whole-block policy">,
    Option<"weights", "weights", "int64_t", "0",
           "ranks that copy frozen weights over the same bus; 0: none">,
    TargetOption, ProfileOption,
  ];
  let statistics = [
    Statistic<"valuesCopied", "copied", "values kept in host memory">,
  ];
}

def Rematerialize : Pass<"rematerialize", "::qlora::train::StepOp"> {
  let summary = "choose what to keep for the backward and what to recompute";
  let description = [{
    Keeps the estimated peak of activations in each accumulate step within
    `budget` bytes at the least extra time. With 0 nothing is recomputed.
    `blocks` is the whole-block policy (`--gradient-checkpointing`), which keeps
    only values that cross layers. With `problem` the decision includes its
    input (addProblem in Memory/StepProblem.h), so that another solver can check
    it.
  }];
  let options = [
    Option<"budget", "budget", "int64_t", "0", "bytes of activations">,
    Option<"blocks", "blocks", "bool", "false", "whole-block policy">,
    Option<"problem", "problem", "bool", "false",
           "record the planner's problem">,
    TargetOption, ProfileOption,
  ];
  let statistics = [
    Statistic<"opsRecomputed", "recomputed", "ops that are recomputed">,
  ];
}

#endif // QLORA_COMPILER_MEMORY_PASSES_TD
