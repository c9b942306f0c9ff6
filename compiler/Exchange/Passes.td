// SPDX-License-Identifier: MIT

// The passes that reduce gradients over ranks, in pipeline order;
// compiler/Passes.td includes it.

#ifndef QLORA_COMPILER_EXCHANGE_PASSES_TD
#define QLORA_COMPILER_EXCHANGE_PASSES_TD

def BucketGradients : Pass<"bucket-gradients", "::mlir::ModuleOp"> {
  let summary = "the flat gradient arena and its all-reduces";
  let description = [{
    Orders the trainable parameters as the backward finishes them (module
    attributes `train.layout`, the names in order, and `train.offsets`), and
    places at most `gradientBuckets` all-reduces, each right after the last
    gradient of its bucket.
  }];
  let options = [
    Option<"gradientBuckets", "gradient-buckets", "int64_t", "4", "">,
    Option<"minBytes", "min-bytes", "int64_t", "1048576",
           "least bytes of a bucket, except the last">,
  ];
}

def CompressGradients : Pass<"compress-gradients", "::mlir::ModuleOp"> {
  let summary = "all-reduce gradients in fewer bits";
  let description = [{
    Replaces each `train.all_reduce` of parameters by ops on rows of the flat
    arenas. `form` bf16 sums rounded values. int8 exchanges codes of blocks in
    two stages among `ranks` ranks. power_sgd sums factors of `rank` rows for
    each matrix. With `feedback` int8 and power_sgd add the error to the next
    step's gradient. Statistics stay exact. Sharded gradients (`pieces`) are
    refused. fuse-rows runs once more, on the new ops.
  }];
  let options = [
    Option<"form", "form", "std::string", "\"bf16\"",
           "bf16, int8 or power_sgd">,
    Option<"ranks", "ranks", "int64_t", "1", "ranks of a run">,
    Option<"rank", "rank", "int64_t", "1", "rows of power_sgd's factors">,
    Option<"feedback", "feedback", "bool", "true",
           "false: the compression error is dropped">,
  ];
}

#endif // QLORA_COMPILER_EXCHANGE_PASSES_TD
