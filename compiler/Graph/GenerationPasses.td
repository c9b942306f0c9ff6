// SPDX-License-Identifier: MIT

// The passes of generation; compiler/Passes.td includes it.

#ifndef QLORA_COMPILER_GRAPH_GENERATIONPASSES_TD
#define QLORA_COMPILER_GRAPH_GENERATIONPASSES_TD

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

#endif // QLORA_COMPILER_GRAPH_GENERATIONPASSES_TD
