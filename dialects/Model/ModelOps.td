// SPDX-License-Identifier: MIT

// The ops of the model dialect. The labels C1, C2, ... of constraints are also
// used by the verifiers (ModelOps.cpp) and by
// tests/dialects/Model/invalid.mlir. N is the number of tokens, B * T.

#ifndef QLORA_DIALECTS_MODEL_MODELOPS_TD
#define QLORA_DIALECTS_MODEL_MODELOPS_TD

include "dialects/Model/ModelAttributes.td"
include "dialects/Model/ModelInterfaces.td"
include "dialects/Model/ModelTypeConstraints.td"
include "dialects/Model/ModelTypes.td"
include "mlir/IR/RegionKindInterface.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

class Model_Op<string mnemonic, list<Trait> traits = []>
    : Op<Model_Dialect, mnemonic, traits>;

/// A pure op on tensors whose kernel is generated. `methods` are the methods
/// with a default in RowOp that the op overrides.
class Model_Row<string mnemonic, list<Trait> traits = [],
                list<string> methods = []>
    : Model_StagedOp<Model_Dialect, mnemonic,
                     [Pure, Model_MemoryOp,
                      DeclareOpInterfaceMethods<Model_RowOp, methods>]
                         # traits>;

class Model_Library<string mnemonic, list<Trait> traits = []>
    : Model_StagedOp<Model_Dialect, mnemonic,
                     [Pure, Model_MemoryOp,
                      DeclareOpInterfaceMethods<Model_LibraryOp>] # traits>;

//===----------------------------------------------------------------------===//
// Parameters
//===----------------------------------------------------------------------===//

def Model_ParameterOp : Model_Op<"parameter", [Symbol]> {
  let summary = "a named weight and where its values come from";
  let description = [{
    * (C1) `type` has a static shape of at most 4 dimensions.
    * (C2) Exactly one of `file` and `init` is present.
    * (C3) `part_names` and `part_rows` are both present or both absent, with
      equal length. The rows are positive and add up to the first dimension. If
      the parameter is quantized, all parts have the same number of rows,
      `quantized` or `stored_quantized` is set, and `transposed` is not.
    * (C4) A trainable parameter is f32.
    * (C5) `quantized` is a quantized type. `file_type` is f32, bf16 or f16, or
      with `stored_quantized` a quantized type. `stored_quantized` requires a
      quantized `type`, or `quantized`.
    * (C6) `transposed` requires `quantized` and two dimensions, and excludes
      `stored_quantized`.
    * (C7) `undecayed`, `rate_scale` and an `optimizer` other than `adamw`
      require `trainable`.

    `file` is a safetensors file inside the folder that the module attribute
    `model.folder` names. Its tensor has the symbol's name, element type
    `file_type` (the parameter's own if absent) and this shape. With
    `stored_quantized` the file holds the tensor in a quantized format.
    `quantized` is the type to which a tensor is quantized when it is loaded. If
    `type` is not quantized, the tensor is then decoded again ("resident"). With
    `transposed` the file stores [in, out], and [out, in] is quantized.

    Values of `init`:
    * `zero`, `kaiming`, `gaussian`: PEFT's initialization of A and B;
    * `normal`: PEFT's initialization of B of an embedding;
    * `factor`: a factor of the adapted weight (PiSSA, OLoRA, LoftQ);
    * `computed`: from other weights, by the DetachedOp that names the
      parameter;
    * `rows`: the rows of PEFT's trainable_token_indices, from the weight of the
      same module.

    A trained parameter is updated by `optimizer` (a row of Train/Optimizers.h),
    with weight decay unless `undecayed`, and with `rate_scale` times the
    learning rate.

    With `piece` each rank holds that many bytes of the stored tensor
    (`model.gather_weight`). The gradient and the optimizer states of a trained
    parameter are sharded too. (C8) the bytes are positive, and for a trained
    parameter whole cache lines.

    `elsewhere` marks a parameter that only other stages of a pipeline use.
    (C10) it is trainable.

    An `on_host` parameter, or its piece, is in the host arena. Kernels can read
    rows of an unsharded parameter there; for all other uses
    `model.gather_weight` copies it. (C11) it is not trainable.

    With `slice` each rank holds its slice of the weight in the files, and
    `type` is the slice's type. (C9) the parameter is not trainable, and the
    segments add up to `ranks` times the dimension in `type`.

    A parameter may stack several tensors along the first dimension, which are
    read and written under their own names (`part_names`). If the parameter is
    quantized, the stack is quantized as one tensor.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name,
    TypeAttrOf<Model_Tensor>:$type, OptionalAttr<StrAttr>:$file,
    OptionalAttr<TypeAttr>:$file_type, OptionalAttr<StrAttr>:$init,
    UnitAttr:$trainable, UnitAttr:$stored_quantized,
    OptionalAttr<TypeAttr>:$quantized,
    OptionalAttr<StrArrayAttr>:$part_names,
    OptionalAttr<DenseI64ArrayAttr>:$part_rows, UnitAttr:$transposed,
    UnitAttr:$undecayed, DefaultValuedAttr<F64Attr, "1.0">:$rate_scale,
    DefaultValuedStrAttr<StrAttr, "adamw">:$optimizer,
    OptionalAttr<I64Attr>:$piece, OptionalAttr<Model_SliceAttr>:$slice,
    UnitAttr:$elsewhere, UnitAttr:$on_host);
  let assemblyFormat = "$sym_name `:` $type attr-dict";
  let extraClassDeclaration = [{
    ::mlir::RankedTensorType getTensorType() {
      return ::llvm::cast<::mlir::RankedTensorType>(getType());
    }
  }];
  let hasVerifier = 1;
}

def Model_WeightOp : Model_StagedOp<Model_Dialect, "weight",
    [Pure, DeclareOpInterfaceMethods<Model_MemoryOp, ["getOutsideMemory"]>,
     DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "the value of a parameter";
  let description = [{
    (C1) the type is the parameter's, or the type of the `part` that this rank
    uses. (C2) with `rounded` it is bf16, and the parameter is trainable and
    f32: the result holds its values as the last update rounded them. (C3) a
    part requires an f32 parameter.
  }];
  let ownArguments = (ins FlatSymbolRefAttr:$parameter,
    UnitAttr:$rounded, Model_UsedPartAttr:$part);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = "$parameter attr-dict `:` type($result)";
}

//===----------------------------------------------------------------------===//
// Library ops
//===----------------------------------------------------------------------===//

def Model_EmbeddingOp
    : Model_Library<"embedding", [Model_TableOp, Model_TokenwiseOp]> {
  let summary = "rows of a table";
  let description = [{
    out[b, t, :] = table[ids[b, t], :]; with `layout out_in`, as in PEFT's A of
    an embedding, table[:, ids[b, t]]. (C1) ids is i32 [B, T], or [B, T, k] if a
    token has several. (C2) the last dimension of the result is the table's
    `out`. (C3) the table is [V, H], or [H, V] with `layout out_in`, and not
    quantized.

    Ids equal to `padding` give the table no gradient, as with torch's
    `padding_idx`; -1 disables this. With `words` (not 0) the table is this
    rank's shard of a table for `words` ids. Ids outside the shard give rows of
    0.
  }];
  let ownArguments = (ins Model_Tensor:$ids,
    Model_WeightTensor:$table,
    DefaultValuedAttr<I64Attr, "-1">:$padding,
    DefaultValuedAttr<Model_WeightLayoutAttr,
                      "::qlora::model::WeightLayout::InOut">:$layout,
    DefaultValuedAttr<I64Attr, "0">:$words);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = [{
    $ids `,` $table (`layout` $layout^)? attr-dict
    `:` functional-type(operands, results)
  }];
  let extraClassDeclaration = [{
    bool canShardTable();
    ::llvm::SmallVector<::mlir::Value> shardTable(
        ::mlir::OpBuilder &builder, ::mlir::Value piece, int64_t shards,
        ::qlora::model::Ranks ranks);
    /// Number of ids for which the table has a vector.
    int64_t getVocabulary();
    /// Path of the module whose weight the table is; empty if there is none.
    ::llvm::StringRef getModulePath();
    /// True if the ids are the model's input `ids`, not positions.
    bool embedsTokens();
  }];
  let hasVerifier = 1;
}

/// Optional outlier threshold of LLM.int8, with a default for builders.
def Model_ThresholdAttr : Attr<F64Attr.predicate, "64-bit float attribute"> {
  let isOptional = 1;
  let storageType = "::mlir::FloatAttr";
  let returnType = "::std::optional<double>";
  let convertFromStorage = [{
    $_self ? ::std::optional($_self.getValueAsDouble()) : ::std::nullopt
  }];
  let constBuilderCall =
      "($0 ? $_builder.getF64FloatAttr(*$0) : ::mlir::FloatAttr())";
  let defaultValue = "::std::optional<double>()";
}

def Model_LinearOp : Model_Library<"linear",
    [Model_AccumulatingOp, Model_WeightedMatmul]> {
  let summary = "y = init + scale * x . W^T";
  let description = [{
    x [B, T, in], W [out, in], y and init [B, T, out]; with `layout in_out` W is
    [in, out], and y = init + scale * x . W. (C1) x is as wide as W's `in`. (C2)
    the last dimension of y is W's `out`, the others are x's. (C3) init has y's
    type. `module` is the path of the Hugging Face module, which adapter targets
    are matched against; LoRA's own linears have none.

    With `int8_threshold` rows of x are rounded to 8 bits and multiplied with
    W's integer codes. Columns with a magnitude of at least the threshold (0:
    none) are multiplied unrounded. (C4) W is then [out, in] with integer codes,
    and the threshold neither negative nor infinite. Dettmers et al., 2022
    (LLM.int8).

    The gradient of x is a linear of dy and the same W with the other layout,
    without rounding.
  }];
  let ownArguments = (ins Model_FloatTensor:$x, Model_WeightTensor:$weight,
    Optional<Model_FloatTensor>:$init,
    DefaultValuedAttr<F64Attr, "1.0">:$scale,
    OptionalAttr<StrAttr>:$module,
    DefaultValuedAttr<Model_WeightLayoutAttr,
                      "::qlora::model::WeightLayout::OutIn">:$layout,
    Model_ThresholdAttr:$int8_threshold);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = [{
    $x `,` $weight (`layout` $layout^)? (`init` $init^)? attr-dict
    `:` functional-type(operands, results)
  }];
  let extraClassDeclaration = [{
    ::mlir::Value getProduct() { return getResult(); }
    bool roundInput(::std::optional<double> threshold) {
      setInt8Threshold(threshold);
      return true;
    }
  }];
  let hasVerifier = 1;
}

def Model_AdaptedNormOp : Model_Library<"adapted_norm",
    [DeclareOpInterfaceMethods<Model_LibraryOp, ["isFullPrecisionResult"]>,
     Model_DetachedOp]> {
  let summary = "norm of each output's weights in W + scale * B . A";
  let description = [{
    W [out, in], or [in, out] with `layout in_out`, A [rank, in], B [out, rank].
    The result is f32 [out]; no gradient flows through it. (C1) the shapes
    agree. (C2) A, B and the result are f32. (C3) the operands are weights. The
    parameter `started`, if given, is initialized with the result. Liu et al.,
    2024 (DoRA).
  }];
  let ownArguments = (ins Model_WeightTensor:$weight, Model_FloatTensor:$a,
    Model_FloatTensor:$b, F64Attr:$scale,
    OptionalAttr<FlatSymbolRefAttr>:$started,
    DefaultValuedAttr<Model_WeightLayoutAttr,
                      "::qlora::model::WeightLayout::OutIn">:$layout);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = [{
    $weight (`layout` $layout^)? `,` $a `,` $b (`starts` $started^)? attr-dict
    `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def Model_AttentionOp : Model_Library<"attention",
    [DeclareOpInterfaceMethods<Model_LibraryOp, ["isFullPrecisionResult"]>,
     DeclareOpInterfaceMethods<Model_ColumnwiseOp, ["assignRuns"]>]> {
  let summary = "causal attention with grouped query heads";
  let description = [{
    q [B, T, heads * dim], k and v [B, T, kv_heads * dim]. The results are the
    output, of q's type, and the log-sum-exp of the scaled scores. A
    query attends to keys of its own segment up to itself, and with `window` > 0
    only to the last `window` positions. Segment 0 is padding and gives 0. With
    a `cap` (not 0) scores s are cap * tanh(s / cap). `sinks` add one score per
    head to every query's softmax; its probability is dropped.

    (C1) heads is a multiple of kv_heads. (C2) the last dimensions agree with
    heads, kv_heads and head_dim, the others with q's. (C3) segments is [B, T]
    i32; the tokens of a segment other than 0 are consecutive. (C4) the
    log-sum-exp is f32 [B, heads, T]; it has no derivative. (C5) window is not
    negative, and cap neither negative nor infinite. (C6) sinks are f32 [heads];
    they have no derivative.
  }];
  let ownArguments = (ins Model_FloatTensor:$q, Model_FloatTensor:$k,
    Model_FloatTensor:$v, Model_Tensor:$segments,
    Optional<Model_FloatTensor>:$sinks, I64Attr:$heads,
    I64Attr:$kv_heads, I64Attr:$head_dim, I64Attr:$window, F64Attr:$scale,
    DefaultValuedAttr<F64Attr, "0.0">:$cap);
  let results = (outs Model_FloatTensor:$result, Model_FloatTensor:$lse);
  let assemblyFormat = [{
    $q `,` $k `,` $v `,` $segments (`sinks` $sinks^)? attr-dict
    `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
  /// The builder below infers the result types from q's.
  let skipDefaultBuilders = 1;
  let builders = [OpBuilder<(ins "::mlir::Value":$q, "::mlir::Value":$k,
    "::mlir::Value":$v, "::mlir::Value":$segments, "int64_t":$heads,
    "int64_t":$kvHeads, "int64_t":$headDim, "int64_t":$window,
    "double":$scale, CArg<"double", "0">:$cap,
    CArg<"::mlir::Value", "{}">:$sinks), [{
      $_state.addOperands({q, k, v, segments});
      if (sinks)
        $_state.addOperands(sinks);
      auto &properties = $_state.getOrAddProperties<Properties>();
      properties.heads = $_builder.getI64IntegerAttr(heads);
      properties.kv_heads = $_builder.getI64IntegerAttr(kvHeads);
      properties.head_dim = $_builder.getI64IntegerAttr(headDim);
      properties.window = $_builder.getI64IntegerAttr(window);
      properties.scale = $_builder.getF64FloatAttr(scale);
      properties.cap = $_builder.getF64FloatAttr(cap);
      ::mlir::RankedTensorType type = tensorOf(q);
      $_state.addTypes({type, ::mlir::RankedTensorType::get(
          {type.getDimSize(0), heads, type.getDimSize(1)},
          $_builder.getF32Type())});
    }]>];
}

def Model_ColumnSumOp : Model_Library<"column_sum", [Model_TokenReductionOp]> {
  let summary = "sum over all rows, in a fixed order";
  let description = [{
    Rows are as wide as the result, which may be narrower than x's last
    dimension. (C1) the result is f32 [C], and C divides that dimension.
  }];
  let ownArguments = (ins Model_Tensor:$x);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

// Included here so that the reference page lists these ops before views.
include "dialects/Model/ModelCacheOps.td"
include "dialects/Model/ModelLossOps.td"
include "dialects/Model/ModelExpertOps.td"
include "dialects/Model/ModelRowOps.td"
include "dialects/Model/ModelTokenOps.td"
include "dialects/Model/ModelShardOps.td"

//===----------------------------------------------------------------------===//
// Views
//===----------------------------------------------------------------------===//

class Model_View<string mnemonic, list<Trait> traits = []>
    : Model_StagedOp<Model_Dialect, mnemonic,
        [Pure, DeclareOpInterfaceMethods<Model_MemoryOp, ["getMemoryRanges"]>]
        # traits>;

def Model_SplitOp : Model_View<"split", [Model_ReductionTransparentOp]> {
  let summary = "column ranges of a tensor, or ranges of its rows";
  let description = [{
    (C1) the last dimensions of the results add up to x's; with `rows`, the
    first dimensions do. (C2) the other dimensions and the element type, which
    is not quantized, are x's.
  }];
  let ownArguments = (ins Model_Tensor:$whole, UnitAttr:$rows);
  let results = (outs Variadic<Model_Tensor>:$parts);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

def Model_ConcatOp : Model_View<"concat"> {
  let summary = "concatenates tensors by columns, or by rows";
  let description = [{
    (C1) the last dimensions of the operands add up to the result's; with
    `rows`, the first dimensions do. (C2) the other dimensions and the element
    type, which is not quantized, are the result's.
  }];
  let ownArguments = (ins Variadic<Model_Tensor>:$parts, UnitAttr:$rows);
  let results = (outs Model_Tensor:$whole);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

#endif // QLORA_DIALECTS_MODEL_MODELOPS_TD
