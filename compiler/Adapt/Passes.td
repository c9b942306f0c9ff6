// SPDX-License-Identifier: MIT

// The passes that give the forward graph its objective, adapters, shapes and
// generation, in pipeline order;
// compiler/Passes.td includes it.

#ifndef QLORA_COMPILER_ADAPT_PASSES_TD
#define QLORA_COMPILER_ADAPT_PASSES_TD

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
  let summary = "train on preferences, or on another loss of tokens";
  let description = [{
    For `none` sets the attributes of the head's loss: `own_probability` for the
    kind `dft`, and `label_smoothing`.

    For other objectives replaces a function's loss by a preference loss; the head returns a loss per
    sequence. For `dpo`, `cpo` and `orpo` a batch has all chosen answers, then the
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
           "none, dpo, cpo, kto or orpo">,
    Option<"beta", "beta", "double", "0.1", "">,
    ListOption<"kinds", "kinds", "std::string",
               "for dpo and cpo: losses of PairLosses.def; empty: sigmoid. For "
               "none: nll or dft; empty: nll">,
    ListOption<"weights", "weights", "double", "their weights; empty: 1 each">,
    Option<"labelSmoothing", "label-smoothing", "double", "0.0",
           "for some of these losses, and for nll">,
    Option<"tau", "tau", "double", "0.05", "for discopop">,
    Option<"gamma", "gamma", "double", "0.5", "for simpo">,
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

def MarkTrainable : Pass<"mark-trainable", "::mlir::ModuleOp"> {
  let summary = "mark the model's trainable weights, and choose their updates";
  let description = [{
    The weights of `modules` (JSON list, PEFT's `modules_to_save`), or of the
    whole model with `all`, become trainable: f32 in memory, with the old type
    as `file_type`. `unfrozen` (JSON list, ParameterPatterns) restricts `all` to
    the weights whose names match. With `bias` all, the model's biases become trainable too;
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
    Option<"unfrozen", "unfrozen", "std::string", "\"[]\"", "">,
    Option<"bias", "bias", "std::string", "\"none\"",
           "none, all or lora_only">,
    Option<"loraPlusRatio", "lora-plus-ratio", "double", "1.0", "">,
    Option<"optimizer", "optimizer", "std::string", "\"adamw_torch\"", "">,
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

def BuildGeneration : Pass<"build-generation", "::mlir::ModuleOp"> {
  let summary = "make the functions prefill and decode from the forward";
  let description = [{
    Rewrites the functions that specialize-shapes marked with `model.step`, and
    does nothing if there are none. Their rows of text are in slots of caches
    (`model.cache`), two for each attention, in `cache-type`. A slot has
    `entries` entries; for an attention with a window, only as many as the
    window and the tokens of a prefill need. Two inputs are added: `slots`, and
    `last`, the token of each row whose logits the function returns. Ops that
    only training computes are dropped, and so is the loss.

    ```mlir
    // before: %y, %lse = model.attention %q, %k, %v, %segments
    //         %loss, %n, %right = model.head_loss %x, %w, %targets
    // after:  %keys = model.cache_rows @keys, %k, %slots, ...
    //         %y = model.cached_attention %q, %keys, %values, %slots, ...
    //         %token = model.pick_tokens %x, %last
    //         %logits = model.linear %token, %w
    ```
  }];
  let options = [
    Option<"entries", "entries", "int64_t", "0", "tokens of a row of text">,
    Option<"cacheType", "cache-type", "std::string", "\"auto\"",
           "auto (the compute type), float32, bfloat16, float16 or int8">,
  ];
}

def StackAdapters : Pass<"stack-adapters", "::mlir::ModuleOp"> {
  let summary = "let each token of a generation choose its adapter";
  let description = [{
    Gives each adapter's matrix A and B space for `adapters` adapters, and adds
    the input `adapters` to the functions of a generation: the index of each
    token's adapter, or -1. Needs a module without a forward of training. The
    scales of the adapters must be 1; qlora-run multiplies B by them.

    ```mlir
    // before: model.parameter @a : tensor<8x64xf32> {init = "kaiming", ...}
    //         %a = model.weight @a
    //         %y = model.linear %x, %a init %y0
    // after:  model.parameter @a : tensor<8x4x64xf32> {init = "zero", ...}
    //         %a = model.weight @a
    //         %y = model.adapter_linear %x, %a, %adapters init %y0
    ```
  }];
  let options = [
    Option<"adapters", "adapters", "int64_t", "0",
           "adapters of the program; 0: the adapter that the graph has">,
  ];
}

#endif // QLORA_COMPILER_ADAPT_PASSES_TD
