// SPDX-License-Identifier: MIT

// The passes over graphs, in pipeline order; compiler/Passes.td includes it.

#ifndef QLORA_COMPILER_GRAPH_PASSES_TD
#define QLORA_COMPILER_GRAPH_PASSES_TD

//===----------------------------------------------------------------------===//
// adapt
//===----------------------------------------------------------------------===//

def SpecializeShapes : Pass<"specialize-shapes", "::mlir::ModuleOp"> {
  let summary = "fix the batch, the length and the compute type";
  let description = [{
    Makes one copy of the forward function per length, one of a single row per
    token bucket (unless that shape exists), and with `generation` two for
    build-generation. A copy has the attributes `model.batch`, `model.length`,
    and for a generation `model.step`. The first two dynamic dimensions of its
    values become batch and length, and f32 activations get the compute type,
    except values with one number per row.

    ```mlir
    // before: %y = model.add %a, %b : tensor<?x?x64xf32>
    // after:  %y = model.add %a, %b : tensor<2x32x64xbf16>
    ```
  }];
  let options = [
    Option<"batch", "batch", "int64_t", "1", "rows of a micro-batch">,
    ListOption<"lengths", "lengths", "int64_t", "tokens of a row">,
    ListOption<"buckets", "buckets", "int64_t", "tokens of packed sequences">,
    ListOption<"generation", "generation", "int64_t",
               "rows of a decode, tokens of a prefill; empty: neither">,
    Option<"computeType", "compute-type", "std::string", "\"float32\"",
           "float32 or bfloat16">,
  ];
}

def QuantizeBase : Pass<"quantize-base", "::mlir::ModuleOp"> {
  let summary = "quantize the weights of frozen linears";
  let description = [{
    Every parameter that is the weight of a `WeightedMatmul` with a `module` (so
    not embeddings, norms, or the head) becomes `!model.quantized<format, block,
    double-quant>`, with `quantized` and the old element type as `file_type`. An
    [in, out] weight is transposed, as in bitsandbytes. Weights that are stored
    quantized stay as they are. A weight with other uses gets only a remark.
  }];
  let options = [
    Option<"format", "format", "std::string", "\"nf4\"",
           "a format of kStoredFormats">,
    Option<"block", "block", "int64_t", "64",
           "elements per block, unless a block is a row">,
    Option<"doubleQuant", "double-quant", "bool", "true",
           "quantize the block scales too, if the format allows">,
    Option<"experts", "experts", "bool", "false",
           "also the stacked weights of experts">,
  ];
}

def RoundActivations : Pass<"round-activations", "::mlir::ModuleOp"> {
  let summary = "round inputs of matmuls with 8-bit weights to 8 bits";
  let description = [{
    Every `WeightedMatmul` with a `module` and an LLM.int8 weight gets
    `int8_threshold`, as in bitsandbytes' MatMul8bitLt. It is an error if no op
    has such a weight, or if such an op cannot round x. Gradients are built
    later, from the decoded weights.

    ```mlir
    // before: model.linear %x, %w {module = "…q_proj"}
    // after:  model.linear %x, %w {int8_threshold = 6.0, module = "…q_proj"}
    ```
  }];
  let options = [
    Option<"threshold", "threshold", "double", "6.0",
           "magnitude from which columns of x are not rounded; 0: none">,
  ];
}

def AttachLoss : Pass<"attach-loss", "::mlir::ModuleOp"> {
  let summary = "train on preferences instead of tokens";
  let description = [{
    Replaces a function's loss by a preference loss; the head returns a loss per
    sequence. For `dpo` and `orpo` a batch has all chosen answers, then the
    rejected ones. For `kto` it has answers, which a new argument `desirable`
    classifies; `mismatched` adds their prompts with answers to other prompts.

    For `dpo` and `kto` a copy of all ops before the loss comes first: the model
    before training, marked `reference`, without dropout, never adapted. For
    `orpo` a second head computes the loss of a new argument, `prompts`.

    ```mlir
    // %loss, %count, %correct = model.head_loss %h, %w, %targets
    // becomes
    // %l0, %n0, %c0 = model.head_loss %h0, %w0, %targets
    //     {phase = #model.phase<reference>}
    // %l, %n, %correct = model.head_loss %h, %w, %targets // per sequence
    // %slopes, %loss, %count, ... = model.dpo_loss %l, %n, %l0
    ```
  }];
  let options = [
    Option<"objective", "objective", "std::string", "\"dpo\"",
           "dpo, kto or orpo">,
    Option<"beta", "beta", "double", "0.1", "">,
    Option<"hinge", "hinge", "bool", "false",
           "for dpo: the hinge loss instead of the sigmoid loss">,
    Option<"mismatched", "mismatched", "bool", "true",
           "for kto: sequences with mismatched answers exist">,
    Option<"desirableWeight", "desirable-weight", "double", "1.0", "for kto">,
    Option<"undesirableWeight", "undesirable-weight", "double", "1.0",
           "for kto">,
  ];
}

def AddNoise : Pass<"add-noise", "::mlir::ModuleOp"> {
  let summary = "add noise to embeddings in training (NEFTune)";
  let description = [{
    Adds `model.noise` of alpha / sqrt(columns) to the embedding of the ids,
    after the embedding's own scale (`model.scale` with `rounded`). Runs before
    attach-adapters, so that the noise also covers an embedding's adapter, as in
    PEFT.

    ```mlir
    // %x = model.embedding %ids, %w
    // becomes
    // %x0 = model.embedding %ids, %w
    // %x  = model.noise %x0 {magnitude = alpha / 8, id}     // 64 columns
    ```
  }];
  let options = [Option<"alpha", "alpha", "double", "0.0", "0: no noise">];
}

def AttachAdapters : Pass<"attach-adapters", "::mlir::ModuleOp"> {
  let summary = "attach LoRA branches to the target linears";
  let description = [{
    Targets follow PEFT's rules. `targets` is a JSON list of suffixes, a JSON
    string with a regular expression for the whole path, or "all-linear" (every
    `WeightedMatmul` with a `module`). Rank and alpha patterns (JSON objects)
    match as in PEFT. A name that matches nothing is an error; so are the LM
    head and `modulesToSave` as targets.

    ```mlir
    // %y = model.linear %x, %w {module = "…q_proj"}
    // becomes
    // %y0 = model.linear %x, %w {module = "…q_proj"}
    // %xa = model.linear %x, %a          // A: [r, in], kaiming
    // %yb = model.linear %xa, %b {scale} // B: [out, r], zero
    // %y  = model.add %y0, %yb
    ```

    With `bias`, `lora_B.bias`, [out], is added too, times `scale`. With `dora`,
    y is `model.magnitude` of that sum: times m / |W + scale * B A|, where m,
    [out], is `lora_magnitude_vector`.

    A target embedding gets a branch too: xa is an embedding of A,
    [r, vocabulary], B is [out, r], and there is no dropout. B starts
    `normal`. A starts `zero` if `init-b` is `zero`, else `normal` too.

    `exclude` (as `targets`, or an empty list) removes modules. `layers` (a JSON
    list of numbers) keeps only modules whose path contains one of the numbers,
    after a name of `layersPattern` if that is not empty.

    With dropout, x goes through one `model.dropout` per distinct x, so that
    siblings share a mask (PEFT draws one per module); the module attribute
    `model.adapter_dropout` records it. `modulesToSave` (JSON) get no adapters.

    If `init-a` and `init-b` are `factor`, A and B start as factors of a matrix,
    listed in `model.adapter_factors` for the runtime. PiSSA and OLoRA factorize
    the weight and subtract the product from the base. LoftQ factorizes the
    quantization error.
  }];
  let options = [
    Option<"rank", "r", "int64_t", "8", "">,
    Option<"alpha", "alpha", "double", "8.0", "">,
    Option<"dropout", "dropout", "double", "0.0", "">,
    Option<"rslora", "rslora", "bool", "false", "alpha / sqrt(r)">,
    Option<"bias", "bias", "bool", "false", "add a bias to B">,
    Option<"dora", "dora", "bool", "false", "train magnitude and direction">,
    Option<"targets", "targets", "std::string", "\"\\\"all-linear\\\"\"", "">,
    Option<"exclude", "exclude", "std::string", "\"[]\"", "">,
    Option<"layers", "layers", "std::string", "\"[]\"", "">,
    Option<"layersPattern", "layers-pattern", "std::string", "\"[]\"", "">,
    Option<"rankPattern", "rank-pattern", "std::string", "\"{}\"", "">,
    Option<"alphaPattern", "alpha-pattern", "std::string", "\"{}\"", "">,
    Option<"modulesToSave", "modules-to-save", "std::string", "\"[]\"", "">,
    Option<"initA", "init-a", "std::string", "\"kaiming\"",
           "kaiming, gaussian or factor">,
    Option<"initB", "init-b", "std::string", "\"zero\"",
           "zero, kaiming or factor">,
  ];
}

def AttachExpertAdapters
    : Pass<"attach-expert-adapters", "::mlir::ModuleOp"> {
  let summary = "attach LoRA branches to the target matmuls of experts";
  let description = [{
    PEFT's `target_parameters`: a JSON list of path suffixes, for the parameters
    of every `WeightedMatmul` with groups and a `module`. Adapters are named as
    in PEFT, which wraps a module once per parameter; later wrappers enclose
    earlier ones (`base_layer`). Module targets that match experts are an error.

    ```mlir
    // %y = model.grouped_linear %x, %w, %offsets {module = "…gate_up_proj"}
    // becomes
    // %y0 = model.grouped_linear %x, %w, %offsets {module = "…gate_up_proj"}
    // %xa = model.grouped_linear %x, %a, %offsets    // A: [E * r, in]
    // %yb = model.grouped_linear %xa, %b, %offsets   // B: [out, r * E]
    //     {groups_last, scale}
    // %y  = model.add %y0, %yb
    ```
  }];
  let options = [
    Option<"rank", "r", "int64_t", "8", "">,
    Option<"alpha", "alpha", "double", "8.0", "">,
    Option<"dropout", "dropout", "double", "0.0", "">,
    Option<"rslora", "rslora", "bool", "false", "alpha / sqrt(r)">,
    Option<"targets", "targets", "std::string", "\"[]\"", "">,
    Option<"moduleTargets", "module-targets", "std::string",
           "\"\\\"all-linear\\\"\"", "attach-adapters' targets">,
    Option<"rankPattern", "rank-pattern", "std::string", "\"{}\"", "">,
    Option<"alphaPattern", "alpha-pattern", "std::string", "\"{}\"", "">,
    Option<"initA", "init-a", "std::string", "\"kaiming\"",
           "kaiming or gaussian">,
    Option<"initB", "init-b", "std::string", "\"zero\"", "zero or kaiming">,
  ];
}

def AttachTokens : Pass<"attach-tokens", "::mlir::ModuleOp"> {
  let summary = "train the input embedding's rows of some tokens";
  let description = [{
    PEFT's trainable_token_indices: a trained parameter replaces the rows of
    `tokens` and starts at their values. If a `WeightedMatmul` uses the same
    table (tied weights), it uses the trained rows too. The table itself stays
    unchanged, for the reference and for all other rows.

    ```mlir
    // %x = model.embedding %ids, %w
    // ... = model.head_loss %h, %w, %targets
    // becomes, with D [k, H]
    // %list = model.token_list {tokens}
    // %is, %rest = model.match_tokens %ids, %list
    // %x0 = model.embedding %ids, %w
    // %x1 = model.scale_rows %x0, %rest
    // %x = model.linear %is, %D layout in_out init %x1
    // %z = model.linear %h, %D
    // ... = model.head_loss %h, %w, %targets columns %z, %list
    ```

    Unknown or repeated tokens are an error, as is an embedding that has an
    adapter or is among `modulesToSave`. Runs after attach-adapters.
  }];
  let options = [
    ListOption<"tokens", "tokens", "int64_t", "token ids">,
    Option<"modulesToSave", "modules-to-save", "std::string", "\"[]\"", "">,
  ];
}

def FuseLora : Pass<"fuse-lora", "::mlir::ModuleOp"> {
  let summary = "one GEMM for the A's of siblings; B's GEMM adds to the base's";
  let description = [{
    Matmuls of adapters' A that share x become one matmul and a `model.split`.
    One parameter stacks the rows of these A's; `part_names` lists them. An
    `add` of a base matmul and B's matmul is erased: the base becomes the `init`
    of B's matmul. Runs before the gradient is built, so that the backward is
    fused too.
  }];
}

def MarkTrainable : Pass<"mark-trainable", "::mlir::ModuleOp"> {
  let summary = "mark the model's trainable weights, and choose their updates";
  let description = [{
    The weights of `modules` (JSON list, PEFT's `modules_to_save`), or of the
    whole model with `all`, become trainable: f32 in memory, with the old type
    as `file_type`. With `bias` all, the model's biases become trainable too;
    with lora_only, only the biases of modules with an adapter. A weight that
    cannot be trained and a name without a module are errors.

    Biases and norms are `undecayed`, as in transformers' Trainer.
    `lora-plus-ratio` becomes the `rate_scale` of adapters' B and of vectors.
    `optimizer` is --optim; it selects a parameter's optimizer by its shape.
    Runs before fuse-lora, which stacks only parameters with equal updates.
  }];
  let options = [
    Option<"modules", "modules", "std::string", "\"[]\"", "">,
    Option<"all", "all", "bool", "false", "every weight of the model">,
    Option<"bias", "bias", "std::string", "\"none\"",
           "none, all or lora_only">,
    Option<"loraPlusRatio", "lora-plus-ratio", "double", "1.0", "">,
    Option<"optimizer", "optimizer", "std::string", "\"adamw_torch\"", "">,
  ];
}

//===----------------------------------------------------------------------===//
// step
//===----------------------------------------------------------------------===//

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

//===----------------------------------------------------------------------===//
// optimize
//===----------------------------------------------------------------------===//

def RoundAdapters : Pass<"round-adapters", "::mlir::ModuleOp"> {
  let summary = "matmuls read trained weights that were rounded once";
  let description = [{
    A kernel that rounds a trained f32 weight to bf16, because the other operand
    is bf16 (`^` in Kernels.def), reads a bf16 copy of it instead. The copy has
    the layout of the weights, and updates write both. Results stay the same;
    this saves a conversion before every matmul.

    ```mlir
    // %a = model.weight @a : tensor<8x64xf32>
    // %y = model.linear %x, %a : (tensor<…xbf16>, tensor<8x64xf32>) -> …
    // becomes
    // %a = model.weight @a {rounded} : tensor<8x64xbf16>
    // %y = model.linear %x, %a : (tensor<…xbf16>, tensor<8x64xbf16>) -> …
    ```
  }];
}

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
    input (addProblem in Graph/StepProblem.h), so that another solver can check
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

def PlanDequant : Pass<"plan-dequant", "::mlir::ModuleOp"> {
  let summary = "choose where stored weights are decoded";
  let description = [{
    Chooses by cost for every weight that is not stored in the compute type:
    decode in panels inside each GEMM (`tiled`); once into scratch before it,
    shared by the recompute and backward of a block (`per-use`); or keep it
    decoded (`once`) if memory allows. Each choice is a remark. A GPU has no
    panels, and `tiled` would decode all of W before each GEMM. So on a GPU
    `auto` chooses `per-use` or `once`.
  }];
  let options = [
    Option<"form", "form", "std::string", "\"auto\"",
           "auto, tiled, per-use or once">,
    Option<"residentBytes", "resident-bytes", "int64_t", "0",
           "bytes available for resident weights">,
    TargetOption, ProfileOption,
  ];
  let statistics = [
    Statistic<"inPanels", "tiled", "groups of uses decoded in panels">,
    Statistic<"inScratch", "per-use", "groups of uses decoded into scratch">,
    Statistic<"keptResident", "once", "weights kept decoded">,
  ];
}

def ConcatSiblings : Pass<"concat-siblings", "::qlora::train::StepOp"> {
  let summary = "one GEMM for frozen linears over the same x";
  let description = [{
    If matmuls of one x decode their weights into scratch, the weights are
    decoded into one stacked matrix, and one GEMM computes all outputs. Another
    GEMM computes the input gradient from all output gradients. Applies only if
    views suffice: nothing is copied, and nothing is kept longer.
  }];
}

def ReorderAccumulation
    : Pass<"reorder-accumulation", "::qlora::train::StepOp"> {
  let summary = "compute matmuls with fewer terms first in a sum";
  let description = [{
    If B has fewer rows than W, `y = xW, z = y + aB` becomes `y = aB,
    z = y + xW`.
  }];
}

def FuseRows : Pass<"fuse-rows", "::qlora::train::StepOp"> {
  let summary = "chains of row ops become one row region";
  let description = [{
    Every row op becomes a `model.rows`. A producer and a consumer over the same
    rows are fused if the fused op can precede all readers of its results.
  }];
  let options = [
    Option<"fuse", "fuse", "bool", "true", "false: one kernel per op">,
  ];
}

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

#endif // QLORA_COMPILER_GRAPH_PASSES_TD
