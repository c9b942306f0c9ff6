// SPDX-License-Identifier: MIT

// Ops of generation: rows that an entry leaves to later entries. Included by
// ModelOps.td, whose conventions and classes apply.
//
//   model.cache @keys : tensor<8x4096x512xbf16>
//
//   %keys = model.cache_rows @keys, %k, %slots, %positions, %segments
//   %y = model.cached_attention %q, %keys, %values, %slots, %positions,
//            %segments
//
// A cache has a slot for each row of text that is in generation. The entry of a
// token is its position modulo the entries of a slot. So a slot with fewer
// entries than the row has tokens is a ring buffer of the last tokens.

#ifndef QLORA_DIALECTS_MODEL_MODELCACHEOPS_TD
#define QLORA_DIALECTS_MODEL_MODELCACHEOPS_TD

def Model_CacheOp : Model_Op<"cache", [Symbol]> {
  let summary = "memory that entries of generation share";
  let description = [{
    `type` is [slots, entries, C]. The values are zero before the first entry.
    With i8, C has 4 more for each head: the bytes of its scale
    (Math/CacheInt8.h). (C1) `type` has three static dimensions and is f32,
    bf16, f16 or i8.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name,
                       TypeAttrOf<Model_Tensor>:$type);
  let assemblyFormat = "$sym_name `:` $type attr-dict";
  let extraClassDeclaration = [{
    ::mlir::RankedTensorType getTensorType() {
      return ::llvm::cast<::mlir::RankedTensorType>(getType());
    }
  }];
  let hasVerifier = 1;
}

def Model_CacheRowsOp : Model_StagedOp<Model_Dialect, "cache_rows",
    [DeclareOpInterfaceMethods<SymbolUserOpInterface>,
     DeclareOpInterfaceMethods<Model_LibraryOp>,
     DeclareOpInterfaceMethods<Model_MemoryOp,
                               ["getOutsideMemory", "getMemoryStores"]>]> {
  let summary = "writes tokens to a cache, and returns the cache";
  let description = [{
    Row x[b, t] goes to slot slots[b, t], entry positions[b, t] modulo the
    cache's entries; rows of segment 0 are padding and dropped. (C1) x is [B, T,
    C] for a cache [S, E, C]. (C2) slots, positions and segments are i32 [B, T].
    (C3) the result has the cache's type. An i8 cache has C elements and 4 bytes
    for the scale of each head. (C4) C divided by the heads is a multiple of 4.
  }];
  let ownArguments = (ins FlatSymbolRefAttr:$cache, Model_FloatTensor:$x,
    Model_Tensor:$slots, Model_Tensor:$positions, Model_Tensor:$segments);
  let results = (outs Model_RowTensor:$result);
  let assemblyFormat = [{
    $cache `,` operands attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def Model_CachedAttentionOp : Model_Library<"cached_attention", []> {
  let summary = "attention of new tokens to all tokens of their slot";
  let description = [{
    q [B, T, heads * dim]; keys and values are caches [S, E, kv_heads * dim]
    that hold the tokens of this entry too. A query at position p sees the
    tokens of its slot at the positions up to p, and with `window` > 0 only the
    last `window` of them. `scale`, `cap` and `sinks` are as in
    `model.attention`. A query of segment 0 gives 0.

    (C1) heads is a multiple of kv_heads. (C2) the last dimensions agree with
    heads, kv_heads and head_dim; the result has q's type. (C3) slots,
    positions and segments are i32 [B, T]. (C4) keys and values have one type.
    (C5) window is not negative, and cap neither negative nor infinite. (C6)
    sinks are f32 [heads]. (C7) entries are at least window + T - 1, so that the
    new tokens overwrite none that a query sees.
  }];
  let ownArguments = (ins Model_FloatTensor:$q, Model_RowTensor:$keys,
    Model_RowTensor:$values, Model_Tensor:$slots, Model_Tensor:$positions,
    Model_Tensor:$segments, Optional<Model_FloatTensor>:$sinks, I64Attr:$heads,
    I64Attr:$kv_heads, I64Attr:$head_dim, I64Attr:$window, F64Attr:$scale,
    DefaultValuedAttr<F64Attr, "0.0">:$cap);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = [{
    $q `,` $keys `,` $values `,` $slots `,` $positions `,` $segments
    (`sinks` $sinks^)? attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def Model_PickTokensOp : Model_Library<"pick_tokens", []> {
  let summary = "one token of each sequence";
  let description = [{
    out[b, 0] is row tokens[b] of x, seen as [B * T, C]. (C1) x is [B, T, C],
    tokens i32 [B], and the result [B, 1, C] with x's element type.
  }];
  let ownArguments = (ins Model_FloatTensor:$x, Model_Tensor:$tokens);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

def Model_AdapterLinearOp : Model_Library<"adapter_linear",
    [Model_AccumulatingOp]> {
  let summary = "a linear whose weight is chosen by token";
  let description = [{
    y[b, t] = init[b, t] + W[:, adapters[b, t]] . x[b, t]. W [out, N, in] has a
    matrix of each of N adapters. A token whose adapter is not in [0, N) has
    none: y = init. It has no derivative. (C1) W is f32 [out, N, in] for x [B,
    T, in]. (C2) y is [B, T, out]. (C3) init has y's type. (C4) adapters is i32
    [B, T].
  }];
  let ownArguments = (ins Model_FloatTensor:$x, Model_FloatTensor:$weight,
    Model_Tensor:$adapters, Optional<Model_FloatTensor>:$init);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = [{
    $x `,` $weight `,` $adapters (`init` $init^)? attr-dict
    `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

#endif // QLORA_DIALECTS_MODEL_MODELCACHEOPS_TD
