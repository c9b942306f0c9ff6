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
    Makes one copy of the forward function per length, named
    `@forward_<batch>x<length>`, with `model.batch` and `model.length`
    attributes, and one of a single row per token bucket, unless a length is the
    same. In every value of a copy the first two dynamic dimensions become batch
    and length, and f32 activations become the compute type; what has one number
    for each row stays f32. Values without dynamic dimensions (weights, loss)
    keep theirs.

    ```mlir
    // before: %y = model.add %a, %b : tensor<?x?x64xf32>
    // after:  %y = model.add %a, %b : tensor<2x32x64xbf16>
    ```
  }];
  let options = [
    Option<"batch", "batch", "int64_t", "1", "rows of a micro-batch">,
    ListOption<"lengths", "lengths", "int64_t", "tokens of a row">,
    ListOption<"buckets", "buckets", "int64_t",
               "tokens of one line that short rows share">,
    Option<"computeType", "compute-type", "std::string", "\"float32\"",
           "float32 or bfloat16">,
  ];
}

def QuantizeBase : Pass<"quantize-base", "::mlir::ModuleOp"> {
  let summary = "give the weights of frozen linears a type of few bits";
  let description = [{
    Every parameter that is used as the weight of a `WeightedMatmul` with a
    `module` (so not embeddings, norms, or the head) becomes
    `!model.quantized<format, block, double-quant>`, with `quantized` and the old element
    type as `file_type`; one that is [in, out] is turned, as bitsandbytes
    does it. Weights that are stored quantised stay as they are. A weight
    whose symbol is used by something else than such products is left, with a
    remark.
  }];
  let options = [
    Option<"format", "format", "std::string", "\"nf4\"",
           "a format of kStoredFormats">,
    Option<"block", "block", "int64_t", "64",
           "elements per block, where that is not a row">,
    Option<"doubleQuant", "double-quant", "bool", "true",
           "quantise the block scales too, where the format may">,
    Option<"experts", "experts", "bool", "false",
           "also the stacked weights of experts">,
  ];
}

def RoundActivations : Pass<"round-activations", "::mlir::ModuleOp"> {
  let summary = "inputs of products with 8-bit weights are rounded to 8 bits";
  let description = [{
    Every `WeightedMatmul` with a `module` whose weight has whole numbers for
    codes (LLM.int8) gets `int8_threshold`: bitsandbytes' MatMul8bitLt. It is an
    error where there is none, or one that cannot round. Gradients are built
    later, of the numbers that weights stand for.

    ```mlir
    // before: %y = model.linear %x, %w {module = "…q_proj"}
    // after:  %y = model.linear %x, %w {int8_threshold = 6.0, module = "…q_proj"}
    ```
  }];
  let options = [
    Option<"threshold", "threshold", "double", "6.0",
           "columns of x with such a magnitude are not rounded; 0: all are">,
  ];
}

def AttachLoss : Pass<"attach-loss", "::mlir::ModuleOp"> {
  let summary = "train for preferences instead of tokens";
  let description = [{
    The loss that a function returns becomes one of preferences, and the head
    gives the loss of each line. For `dpo` and `orpo` the lines of a batch are
    those of all chosen answers, then those of the rejected ones; for `kto` those
    of answers, of which a new argument `desirable` says which, then with
    `mismatched` those of their prompts with other answers.

    For `dpo` and `kto` all before the loss is there twice: the copy is the model
    as it is now, goes first, is marked `reference`, has no dropout, and is left
    alone by who adapts the model later. For `orpo` a second head has the tokens
    before the answers, a new argument `prompts`.

    ```mlir
    // %loss, %count, %correct = model.head_loss %h, %w, %targets
    // becomes
    // %l0, %n0, %c0 = model.head_loss %h0, %w0, %targets
    //     {phase = #model.phase<reference>}
    // %l, %n, %correct = model.head_loss %h, %w, %targets // of each line
    // %slopes, %loss, %count, ... = model.dpo_loss %l, %n, %l0
    ```
  }];
  let options = [
    Option<"objective", "objective", "std::string", "\"dpo\"",
           "dpo, kto or orpo">,
    Option<"beta", "beta", "double", "0.1", "">,
    Option<"mismatched", "mismatched", "bool", "true",
           "of kto: there are lines of mismatched answers">,
    Option<"desirableWeight", "desirable-weight", "double", "1.0", "of kto">,
    Option<"undesirableWeight", "undesirable-weight", "double", "1.0", "of kto">,
  ];
}

def AddNoise : Pass<"add-noise", "::mlir::ModuleOp"> {
  let summary = "put noise on embeddings in training (NEFTune)";
  let description = [{
    What an embedding of the ids gives, times the scale that is the embedding's
    own (`model.scale` with `rounded`), gets `model.noise` of alpha /
    sqrt(columns). Before attach-adapters, whose branch of an embedding is then
    in what gets it, as in PEFT.

    ```mlir
    // %x = model.embedding %ids, %w
    // becomes
    // %x0 = model.embedding %ids, %w
    // %x  = model.noise %x0 {magnitude = alpha / 8, id}     // 64 columns
    ```
  }];
  let options = [Option<"alpha", "alpha", "double", "0.0", "0: none">];
}

def AttachAdapters : Pass<"attach-adapters", "::mlir::ModuleOp"> {
  let summary = "put LoRA branches beside the target linears";
  let description = [{
    PEFT's rules. `targets` is a JSON list of suffixes, a JSON string with a
    regular expression for the whole path, or "all-linear" (every
    `WeightedMatmul` with a `module`). Rank and alpha patterns (JSON
    objects) match as PEFT does. A name that matches nothing is an error that
    lists what is there; so are the LM head and `modulesToSave` as targets.

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

    An embedding that `targets` name gets one too: xa is an embedding of A,
    [r, vocabulary], B is [out, r], and there is no dropout; A starts as zero
    and B normal, whatever the others do, but for `init-b` kaiming, where both
    are normal.

    `exclude` (as `targets`, or an empty list) takes modules out again; `layers`
    (a JSON list of numbers) leaves those of a list whose path has one of these
    numbers, behind one of the names of `layersPattern` where there are any.

    With dropout, x goes through one `model.dropout` per distinct x, so that
    siblings share a mask (PEFT draws one per module); the module attribute
    `model.adapter_dropout` keeps which. `modulesToSave` (JSON list) get none.

    With `init-a` and `init-b` factor, A and B start as factors of the weight,
    which `model.adapter_factors` names for the runtime, and what is left of it
    is the base (PiSSA, OLoRA), or as those of what quantisation leaves (LoftQ).
  }];
  let options = [
    Option<"rank", "r", "int64_t", "8", "">,
    Option<"alpha", "alpha", "double", "8.0", "">,
    Option<"dropout", "dropout", "double", "0.0", "">,
    Option<"rslora", "rslora", "bool", "false", "alpha / sqrt(r)">,
    Option<"bias", "bias", "bool", "false", "a bias beside B">,
    Option<"dora", "dora", "bool", "false", "learn magnitude and direction">,
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
  let summary = "put LoRA branches beside the target products of experts";
  let description = [{
    PEFT's `target_parameters`: a JSON list of ends of the paths of parameters,
    of every `WeightedMatmul` with groups and a `module`. Names are PEFT's,
    which wraps a module once for each of its parameters, the first innermost
    (`base_layer`). Targets of modules that reach experts are an error.

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
  let summary = "train rows of the input embedding for some words";
  let description = [{
    PEFT's trainable_token_indices: the rows of `tokens` are those of a trained
    parameter, which starts at the table's, also where a `WeightedMatmul` of
    the same table makes outputs of them (tied weights). The table itself stays
    as it is, for the reference and for all other rows.

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

    Words that are not there or come twice are an error, as is an embedding that
    has an adapter too or is among `modulesToSave`. After attach-adapters.
  }];
  let options = [
    ListOption<"tokens", "tokens", "int64_t", "numbers of words">,
    Option<"modulesToSave", "modules-to-save", "std::string", "\"[]\"", "">,
  ];
}

def FuseLora : Pass<"fuse-lora", "::mlir::ModuleOp"> {
  let summary = "one GEMM for the A's of siblings, B added into the base";
  let description = [{
    Trainable products without a `module` that share x become one, over one
    parameter whose rows are the siblings' (`part_names`), and a
    `model.split`. An `add` of a value used once and an accumulating op used
    once becomes that op's `init`. Before the gradient is built, so that the
    backward is fused too.
  }];
}

def MarkTrainable : Pass<"mark-trainable", "::mlir::ModuleOp"> {
  let summary = "train weights of the model; say how each parameter is updated";
  let description = [{
    The weights of `modules` (JSON list, PEFT's `modules_to_save`), or of the
    whole model with `all`, become trainable: f32 in memory, of the type in the
    file that they had. So do biases of the model: with `bias` all every one of
    them, with lora_only those of modules that have an adapter. What cannot be
    trained is an error, as is a name that no module has.

    Biases and norms are `undecayed`, as transformers' Trainer has it. With
    `lora-plus-ratio`, the B of adapters and what has one dimension get it as
    `rate_scale`. `optimizer` is
    --optim, of which each parameter gets the row of its shape. Before fuse-lora,
    which stacks only what is updated alike.
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
    For each `@forward_<length>` an `accumulate` and an `evaluate` step (the
    latter without dropout), and one `update`. Saves every activation that
    the backward reads. A trainable parameter that no gradient reaches is an
    error. With `pieces` each rank updates its part of the flat arena, keeps
    states of that alone, and gathers the others' parts (ZeRO-1). With `runRanks`
    the flat arenas can be divided among so many ranks.
  }];
  let options = [Option<"pieces", "pieces", "int64_t", "1",
                        "ranks that divide the updates; 1: none">,
                 Option<"runRanks", "run-ranks", "int64_t", "0",
                        "ranks of a run; 0: any number">];
  let dependentDialects = ["::qlora::train::TrainDialect"];
}

def FuseAccumulate : Pass<"fuse-accumulate", "::qlora::train::StepOp"> {
  let summary = "sums of gradients inside the GEMMs that produce them";
  let description = [{
    `add(g, op)` becomes `op init g` where op can accumulate, and both values
    are used once.
  }];
}

//===----------------------------------------------------------------------===//
// optimize
//===----------------------------------------------------------------------===//

def RoundAdapters : Pass<"round-adapters", "::mlir::ModuleOp"> {
  let summary = "products read trained weights that were rounded once";
  let description = [{
    A kernel that rounds a trained f32 weight to bf16, because the other factor
    is bf16 (`^` in Kernels.def), reads a bf16 copy of it instead. The copy is
    flat as the weights are, and updates write both. The numbers stay
    the same; what is saved is a conversion before every product.

    ```mlir
    // %a = model.weight @a : tensor<8x64xf32>
    // %y = model.linear %x, %a : (tensor<2x32x64xbf16>, tensor<8x64xf32>) -> …
    // becomes
    // %a = model.weight @a {rounded} : tensor<8x64xbf16>
    // %y = model.linear %x, %a : (tensor<2x32x64xbf16>, tensor<8x64xbf16>) -> …
    ```
  }];
}

def EncodeActivations : Pass<"encode-activations", "::qlora::train::StepOp"> {
  let summary = "what serves weight gradients alone waits in 8 bits";
  let description = [{
    A forward value made by a row op that the backward reads only in library
    ops whose results are gradients of parameters, and nothing else, is kept
    as `train.encode_rows` makes it, and decoded before its readers. In LoRA
    that is the x of an adapter: x of q, k, v; of gate, up; of down; and what
    its dropout leaves of an x. The decision has the number and the bytes.
    `rematerialize` may still drop the codes and compute them again: the
    gradients do not depend on that.
  }];
  let statistics = [
    Statistic<"values", "values", "values that wait in 8 bits">,
    Statistic<"exactBytes", "exact-bytes", "bytes of them as they were">,
    Statistic<"encodedBytes", "encoded-bytes", "bytes of them as they wait">,
  ];
}

def OffloadActivations
    : Pass<"offload-activations", "::qlora::train::StepOp"> {
  let summary = "what the backward reads waits in host memory";
  let description = [{
    Values of a layer's forward that the backward reads are copied to the host
    (`train.copy_to_host`), and back a layer ahead of their first reader
    (`train.copy_from_host`). Those that cross from one layer to another come
    first, then those that take longest to compute again for each of their bytes;
    of each layer as many as can be copied while it is computed (`values` =
    hidden). With `crossing` all of the first, hidden or not, and no others; with
    `all` whatever can be copied; with `none` nothing. With `blocks` those that do
    not cross stay, for rematerialize drops them. With `weights` the bus carries
    those of each layer too, or of so many ranks each its part of them.
  }];
  let options = [
    Option<"values", "values", "std::string", "\"hidden\"",
           "none, hidden, crossing or all">,
    Option<"blocks", "blocks", "bool", "false", "whole-block policy">,
    Option<"weights", "weights", "int64_t", "0",
           "ranks that bring the frozen weights over the same bus; 0: none">,
    TargetOption, ProfileOption,
  ];
  let statistics = [
    Statistic<"valuesCopied", "copied", "values that wait in host memory">,
  ];
}

def Rematerialize : Pass<"rematerialize", "::qlora::train::StepOp"> {
  let summary = "what to keep for the backward and what to compute again";
  let description = [{
    Keeps the estimated peak of each accumulate step under `budget` bytes of
    activations at the least extra time. 0: no limit, nothing is recomputed.
    `blocks`: the whole-block policy (`--gradient-checkpointing`): only
    values that cross from one decoder layer to another are kept.
    With `problem` the decision has also what it was made from (addProblem in
    Graph/StepProblem.h), to be checked by another solver.
  }];
  let options = [
    Option<"budget", "budget", "int64_t", "0", "bytes of activations">,
    Option<"blocks", "blocks", "bool", "false", "whole-block policy">,
    Option<"problem", "problem", "bool", "false",
           "write down the planner's problem">,
    TargetOption, ProfileOption,
  ];
  let statistics = [
    Statistic<"opsRecomputed", "recomputed", "ops that are computed again">,
  ];
}

def PlanDequant : Pass<"plan-dequant", "::mlir::ModuleOp"> {
  let summary = "where stored weights become numbers";
  let description = [{
    For every weight that is not stored in the compute type, by cost: decoded
    in panels inside each GEMM (`panel`), once into scratch before it, shared
    by the recompute and backward of the same block (`scratch`), or kept as
    numbers (`resident`) where memory allows. Each choice is a remark. A GPU
    has no panels: `panel` is a decode of all of W inside each GEMM there, so
    the choice is between the other two.
  }];
  let options = [
    Option<"form", "form", "std::string", "\"auto\"",
           "auto, panel, scratch or resident">,
    Option<"residentBytes", "resident-bytes", "int64_t", "0",
           "memory left for resident weights">,
    TargetOption, ProfileOption,
  ];
  let statistics = [
    Statistic<"inPanels", "panel", "groups of uses decoded in panels">,
    Statistic<"inScratch", "scratch", "groups of uses decoded into scratch">,
    Statistic<"keptResident", "resident", "weights kept as numbers">,
  ];
}

def ConcatSiblings : Pass<"concat-siblings", "::qlora::train::StepOp"> {
  let summary = "one GEMM for frozen linears over the same x";
  let description = [{
    Products of one x whose weights are decoded into scratch: the weights are
    decoded into one, by rows, and one GEMM makes all outputs; so does one of
    all their output gradients the input gradient. Only where views are
    enough: nothing is copied, and nothing is kept longer.
  }];
}

def ReorderAccumulation : Pass<"reorder-accumulation", "::qlora::train::StepOp"> {
  let summary = "of products that add up, those with fewer terms come first";
  let description = [{
    A product to all of which products of fewer terms add, and that nothing
    else reads, adds to them instead, behind its arithmetic.
  }];
}

def FuseRows : Pass<"fuse-rows", "::qlora::train::StepOp"> {
  let summary = "chains of row ops become one row region";
  let description = [{
    Every row op becomes a `model.rows`; a producer and a consumer over the
    same rows become one, where no value moves across a reader.
  }];
  let options = [
    Option<"fuse", "fuse", "bool", "true", "false: one kernel per op">,
  ];
}

def BucketGradients : Pass<"bucket-gradients", "::mlir::ModuleOp"> {
  let summary = "the flat gradient arena and its all-reduces";
  let description = [{
    Orders the trainable parameters as the backward finishes them (module
    attribute `train.layout`: names in order, and `train.offsets`), and places
    at most `maxBuckets` all-reduces, each right after the last gradient of
    its bucket.
  }];
  let options = [
    Option<"maxBuckets", "max-buckets", "int64_t", "4", "">,
    Option<"minBytes", "min-bytes", "int64_t", "1048576",
           "a bucket is not smaller than this, but for the last">,
  ];
}

def CompressGradients : Pass<"compress-gradients", "::mlir::ModuleOp"> {
  let summary = "gradients are summed over the ranks in fewer bits";
  let description = [{
    Each `train.all_reduce` of parameters becomes what `form` means, as ops on
    rows of the flat arenas: in bf16 a sum of rounded numbers; in int8 codes of
    blocks, exchanged in two stages among `ranks` ranks, where what rounding
    leaves is added to the next step's gradient; in power_sgd products of `rank`
    rows for each matrix, with the same. Statistics stay exact. Sharded gradients
    (`pieces`) are refused. fuse-rows runs once more, on the ops in rows.
  }];
  let options = [
    Option<"form", "form", "std::string", "\"bf16\"", "bf16, int8 or power_sgd">,
    Option<"ranks", "ranks", "int64_t", "1",
           "ranks of a run, which int8 divides the work among, and power_sgd "
           "what a product leaves">,
    Option<"rank", "rank", "int64_t", "1", "rows of power_sgd's products">,
    Option<"feedback", "feedback", "bool", "true",
           "false: what rounding or a product leaves is lost">,
  ];
}

#endif // QLORA_COMPILER_GRAPH_PASSES_TD
