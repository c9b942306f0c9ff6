// SPDX-License-Identifier: MIT

// The ops of the model dialect. Constraints are labelled C1, C2, ...; the
// verifiers (ModelOps.cpp) and tests/dialects/Model/invalid.mlir use the same
// labels. N is the number of tokens, B * T.

#ifndef QLORA_DIALECTS_MODEL_MODELOPS_TD
#define QLORA_DIALECTS_MODEL_MODELOPS_TD

include "dialects/Model/ModelDialect.td"
include "dialects/Model/ModelInterfaces.td"
include "dialects/Model/ModelTensors.td"
include "mlir/IR/RegionKindInterface.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

class Model_Op<string mnemonic, list<Trait> traits = []>
    : Op<Model_Dialect, mnemonic, traits>;

/// A pure op on tensors that code is generated for.
class Model_Row<string mnemonic, list<Trait> traits = []>
    : Model_Op<mnemonic,
               [Pure, Model_MemoryOp,
                DeclareOpInterfaceMethods<Model_RowOp>] # traits>;

class Model_Library<string mnemonic, list<Trait> traits = []>
    : Model_Op<mnemonic,
               [Pure, Model_MemoryOp,
                DeclareOpInterfaceMethods<Model_LibraryOp>] # traits>;

//===----------------------------------------------------------------------===//
// Parameters
//===----------------------------------------------------------------------===//

def Model_ParameterOp : Model_Op<"parameter", [Symbol]> {
  let summary = "a named weight and where its values come from";
  let description = [{
    (C1) `type` has a static shape of at most 4 dimensions. (C2) exactly one of
    `file` and `init` is there. (C3) with parts, `part_names` and `part_rows`
    have equal length, the rows are positive and add up to the first dimension,
    and the type is not 4-bit. (C4) a trainable parameter is f32.
    (C5) `quantized` is 4-bit, `file_type` is f32, bf16 or f16, and
    `stored_quantized` goes with a 4-bit `type` or `quantized`. (C6)
    `transposed` goes with `quantized` and two dimensions, and not with
    `stored_quantized`.

    `file` is a safetensors file inside the folder that the module attribute
    `model.folder` names; its tensor has the symbol's name, element type
    `file_type` (the parameter's own if absent) and this shape. If
    `stored_quantized` is set, the file holds bitsandbytes' NF4 tensors.
    `quantized` marks a tensor to be quantised with the given type when
    loaded, and, where `type` is not NF4 itself, decoded again ("resident");
    with `transposed` the file has [in, out] of the [out, in] that is quantised.
    `init`: `zero`, `kaiming` or `gaussian` (PEFT's for A and B).

    A parameter may be several tensors, stacked along the first dimension,
    that are read and written under their own names (`part_names`).
  }];
  let arguments = (ins SymbolNameAttr:$sym_name,
    TypeAttrOf<Model_Tensor>:$type, OptionalAttr<StrAttr>:$file,
    OptionalAttr<TypeAttr>:$file_type, OptionalAttr<StrAttr>:$init,
    UnitAttr:$trainable, UnitAttr:$stored_quantized,
    OptionalAttr<TypeAttr>:$quantized,
    OptionalAttr<StrArrayAttr>:$part_names,
    OptionalAttr<DenseI64ArrayAttr>:$part_rows, UnitAttr:$transposed);
  let assemblyFormat = "$sym_name `:` $type attr-dict";
  let extraClassDeclaration = [{
    ::mlir::RankedTensorType getTensorType() {
      return ::llvm::cast<::mlir::RankedTensorType>(getType());
    }
  }];
  let hasVerifier = 1;
}

def Model_WeightOp : Model_Op<"weight",
    [Pure, DeclareOpInterfaceMethods<Model_MemoryOp, ["getOutsideMemory"]>,
     DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "the value of a parameter";
  let description = [{
    (C1) the type is that of the parameter. (C2) with `rounded` it is bf16, and
    the parameter trainable and f32: its numbers as the last update rounded
    them.
  }];
  let arguments = (ins FlatSymbolRefAttr:$parameter, UnitAttr:$rounded);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = "$parameter attr-dict `:` type($result)";
}

//===----------------------------------------------------------------------===//
// Library ops
//===----------------------------------------------------------------------===//

def Model_EmbeddingOp : Model_Library<"embedding"> {
  let summary = "rows of a table";
  let description = [{
    out[b, t, :] = table[ids[b, t], :]. (C1) ids is [B, T] i32. (C2) the last
    dimension of the result is the table's. (C3) the table is [V, H] and not
    4-bit.
  }];
  let arguments = (ins Model_Tensor:$ids, Model_WeightTensor:$table);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat =
      "$ids `,` $table attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Model_LinearOp : Model_Library<"linear",
    [Model_AccumulatingOp, Model_WeightedProduct]> {
  let summary = "y = init + scale * x . W^T";
  let description = [{
    x [B, T, in], W [out, in], y and init [B, T, out]; with `layout in_out` W
    is [in, out], and y = init + scale * x . W. (C1) x is as wide as W's `in`.
    (C2) the last dimension of y is W's `out`, the others are x's. (C3) init has
    y's type. `module` is the path of the Hugging Face module, which adapter
    targets are matched against; LoRA's own linears have none.

    The gradient of x is a linear too: of dy, with the same W seen the other way
    round.
  }];
  let arguments = (ins Model_FloatTensor:$x, Model_WeightTensor:$weight,
    Optional<Model_FloatTensor>:$init,
    DefaultValuedAttr<F64Attr, "1.0">:$scale,
    OptionalAttr<StrAttr>:$module,
    DefaultValuedAttr<Model_WeightLayoutAttr,
                      "::qlora::model::WeightLayout::OutIn">:$layout);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = [{
    $x `,` $weight (`layout` $layout^)? (`init` $init^)? attr-dict
    `:` functional-type(operands, results)
  }];
  let extraClassDeclaration = [{
    ::mlir::Value getProduct() { return getResult(); }
  }];
  let hasVerifier = 1;
}

def Model_AttentionOp : Model_Library<"attention",
    [DeclareOpInterfaceMethods<Model_LibraryOp, ["isFullPrecisionResult"]>]> {
  let summary = "causal attention with grouped query heads";
  let description = [{
    q [B, T, heads * dim], k and v [B, T, kv_heads * dim]; result as q, and
    the log-sum-exp of the scaled scores, f32 [B, heads, T]. A query sees keys
    of its own segment, not after itself, and with `window` > 0 only the last
    `window` positions. Segment 0 is padding and gives 0. (C1) heads is a
    multiple of kv_heads. (C2) the last dimensions agree with heads, kv_heads
    and head_dim, the others with q's. (C3) segments is [B, T] i32. (C4) the
    log-sum-exp is f32 [B, heads, T]; it has no derivative. (C5) window is not
    negative.
  }];
  let arguments = (ins Model_FloatTensor:$q, Model_FloatTensor:$k,
    Model_FloatTensor:$v, Model_Tensor:$segments, I64Attr:$heads,
    I64Attr:$kv_heads, I64Attr:$head_dim, I64Attr:$window, F64Attr:$scale);
  let results = (outs Model_FloatTensor:$result, Model_FloatTensor:$lse);
  let assemblyFormat = [{
    $q `,` $k `,` $v `,` $segments attr-dict
    `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
  /// The types of the results follow from q's.
  let skipDefaultBuilders = 1;
  let builders = [OpBuilder<(ins "::mlir::Value":$q, "::mlir::Value":$k,
    "::mlir::Value":$v, "::mlir::Value":$segments, "int64_t":$heads,
    "int64_t":$kvHeads, "int64_t":$headDim, "int64_t":$window,
    "double":$scale)>];
}

def Model_HeadLossOp : Model_Library<"head_loss", [Model_WeightedProduct]> {
  let summary = "output head and cross entropy, logits never whole";
  let description = [{
    hidden [B, T, H], W [V, H], targets [B, T] i32 (the label of the next
    token; -100: none). Results: loss sum and label count, f32 [1]; correct
    i32 [B, T], 1 where the target is the argmax. (C1) W's second dimension
    is H. (C2) targets is [B, T] i32. (C3) W is not 4-bit. (C4) the results
    have these types.
  }];
  let arguments = (ins Model_FloatTensor:$hidden, Model_WeightTensor:$weight,
    Model_Tensor:$targets);
  let results = (outs Model_FloatTensor:$loss, Model_FloatTensor:$count,
    Model_Tensor:$correct);
  let assemblyFormat = [{
    $hidden `,` $weight `,` $targets attr-dict
    `:` functional-type(operands, results)
  }];
  let extraClassDeclaration = Model_HeadMethods;
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Row ops. C is the row: the width of the weight where there is one, else the
// last dimension.
//===----------------------------------------------------------------------===//

def Model_RmsNormOp : Model_Row<"rms_norm"> {
  let summary = "y = x / sqrt(mean(x^2) + epsilon) * weight";
  let description = [{
    Over groups of C = |weight| elements: the whole hidden size, or one head
    (Qwen3's q and k norm). (C1) the last dimension of x is a multiple of C.
    (C2) y has x's type. Zhang and Sennrich, 2019.
  }];
  let arguments = (ins Model_FloatTensor:$x, Model_FloatTensor:$weight,
    F64Attr:$epsilon);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat =
      "$x `,` $weight attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Model_LayerNormOp : Model_Row<"layer_norm"> {
  let summary = "y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias";
  let description = [{
    Over groups of C = |weight| elements, with the variance of the elements
    themselves (divided by C). (C1) the last dimension of x is a multiple of C.
    (C2) y has x's type. (C3) the bias is as wide as the weight. Ba et al., 2016.
  }];
  let arguments = (ins Model_FloatTensor:$x, Model_FloatTensor:$weight,
    Model_FloatTensor:$bias, F64Attr:$epsilon);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = [{
    $x `,` $weight `,` $bias attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def Model_RopeTableOp : Model_Row<"rope_table"> {
  let summary = "cos and sin of position * frequency";
  let description = [{
    positions [B, T] i32, frequencies f32 [dim] (the dim/2 inverse
    frequencies twice, as rotate-half wants them): cos and sin [B, T, dim],
    times `attention_factor`. (C1) positions is i32 [B, T]. (C2) frequencies
    has dim elements, and sin has cos's type.
  }];
  let arguments = (ins Model_Tensor:$positions,
    DenseF32ArrayAttr:$frequencies, F64Attr:$attention_factor);
  let results = (outs Model_FloatTensor:$cos, Model_FloatTensor:$sin);
  let assemblyFormat =
      "$positions attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Model_RopeOp : Model_Row<"rope"> {
  let summary = "rotary position embedding: x * cos + rotate_half(x) * sin";
  let description = [{
    x [B, T, heads * dim], cos and sin [B, T, dim]; C = dim. (C1) the last
    dimension of x is a multiple of dim. (C2) dim is even. (C3) y has x's
    type. Su et al., 2021, with the halves as Hugging Face has them.
  }];
  let arguments = (ins Model_FloatTensor:$x, Model_FloatTensor:$cos,
    Model_FloatTensor:$sin);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = [{
    $x `,` $cos `,` $sin attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def Model_SwigluOp : Model_Row<"swiglu", [SameOperandsAndResultType]> {
  let summary = "y = gate * sigmoid(gate) * up";
  let arguments = (ins Model_FloatTensor:$gate, Model_FloatTensor:$up);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = "$gate `,` $up attr-dict `:` type($result)";
}

def Model_ActivationOp : Model_Row<"activation", [SameOperandsAndResultType]> {
  let summary = "y = f(x), element by element";
  let description = [{
    gelu: x * (1 + erf(x / sqrt(2))) / 2. gelu_tanh: its approximation
    x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2. relu: max(x, 0).
    silu: x * sigmoid(x). Hendrycks and Gimpel, 2016.
  }];
  let arguments = (ins Model_FloatTensor:$x, Model_ActivationAttr:$kind);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = "$kind $x attr-dict `:` type($result)";
}

def Model_AddOp : Model_Row<"add",
    [SameOperandsAndResultType, Commutative]> {
  let summary = "y = a + b";
  let arguments = (ins Model_FloatTensor:$a, Model_FloatTensor:$b);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = "$a `,` $b attr-dict `:` type($result)";
}

def Model_AddBiasOp : Model_Row<"add_bias"> {
  let summary = "y = x + bias, the same bias for every token";
  let description = [{
    (C1) the last dimension of x is |bias|. (C2) y has x's type.
  }];
  let arguments = (ins Model_FloatTensor:$x, Model_FloatTensor:$bias);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat =
      "$x `,` $bias attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

/// An op that evaluation leaves out: its result is its first operand.
def Model_TrainingOnly : NativeOpTrait<"TrainingOnly"> {
  let cppNamespace = "::qlora::model";
}

def Model_DropoutOp : Model_Row<"dropout",
    [SameOperandsAndResultType, Model_TrainingOnly]> {
  let summary = "y = x * keep / (1 - probability)";
  let description = [{
    keep is 1 where philox(seed, micro-batch, id, row, column) >= probability,
    a pure function of its arguments: recomputing gives the same mask
    (runtime/Kernels/Math/Philox.h). Not there in evaluation.
    (C1) 0 < probability < 1.
  }];
  let arguments = (ins Model_FloatTensor:$x, F64Attr:$probability, I64Attr:$id);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = "$x attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Model_RowsOp : Model_Op<"rows",
    [Pure, IsolatedFromAbove, Model_MemoryOp,
     DeclareOpInterfaceMethods<Model_RowOp, ["isScalarResult"]>,
     SingleBlockImplicitTerminator<"RowYieldOp">]> {
  let summary = "arithmetic over rows, as a region";
  let description = [{
    What row ops become: by their gradients and by `fuse-rows`. (C1) one map
    per operand, one argument per operand of the type RowOp says. (C2) one
    yielded `tensor<Cxf32>` per result, or `f32` for one number a row, but not
    for the first, which there is. (C3) `columns` is positive and divides the
    last dimension of every result of rows.
    (C4) every row in the region has C elements. (C5) `label` is an identifier:
    the kernel is called so.
  }];
  let arguments = (ins Variadic<Model_Tensor>:$inputs, I64Attr:$columns,
    Model_MapArrayAttr:$maps, OptionalAttr<StrAttr>:$label);
  let results = (outs Variadic<Model_RowTensor>:$outputs);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = [{
    `(` $inputs `)` attr-dict-with-keyword
    `:` functional-type(operands, results) $body
  }];
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Inside a row region
//===----------------------------------------------------------------------===//

def Model_Row1D : Type<CPred<"::qlora::model::isRow($_self)">,
                       "a row, tensor<Cxf32>", "::mlir::RankedTensorType">;

def Model_RowYieldOp : Model_Op<"row_yield", [Pure, Terminator]> {
  let summary = "the rows of the results";
  let arguments = (ins Variadic<AnyType>:$values);
  let assemblyFormat = "($values^ `:` type($values))? attr-dict";
  let builders = [OpBuilder<(ins), [{ /* nothing is yielded */ }]>];
}

def Model_RowReduction : NativeOpTrait<"RowReduction"> {
  let cppNamespace = "::qlora::model";
}

class Model_Reduction<string mnemonic>
    : Model_Op<mnemonic, [Pure, Model_RowReduction]> {
  let arguments = (ins Model_Row1D:$row);
  let results = (outs F32:$result);
  let assemblyFormat = "$row attr-dict `:` type($row)";
}

def Model_RowSumOp : Model_Reduction<"row_sum"> {
  let summary = "sum of the elements of a row";
}

def Model_RowMaxOp : Model_Reduction<"row_max"> {
  let summary = "largest element of a row; NaN where one is NaN";
}

def Model_RowSplatOp : Model_Op<"row_splat", [Pure]> {
  let summary = "a row of one number";
  let arguments = (ins F32:$value);
  let results = (outs Model_Row1D:$result);
  let assemblyFormat = "$value attr-dict `:` type($result)";
}

def Model_RowRotateOp : Model_Op<"row_rotate",
    [Pure, SameOperandsAndResultType]> {
  let summary = "rotate_half: (-second half, first half)";
  let description = "(C1) the row has an even number of elements.";
  let arguments = (ins Model_Row1D:$row);
  let results = (outs Model_Row1D:$result);
  let assemblyFormat = "$row attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Model_RowSigmoidOp : Model_Op<"row_sigmoid",
    [Pure, SameOperandsAndResultType]> {
  let summary = "1 / (1 + exp(-x))";
  let description = [{
    An op of its own, because its derivative s (1 - s) is finite where that of
    the quotient is 0 * inf.
  }];
  let arguments = (ins Model_Row1D:$row);
  let results = (outs Model_Row1D:$result);
  let assemblyFormat = "$row attr-dict `:` type($result)";
}

def Model_RowRoundOp : Model_Op<"row_round",
    [Pure, SameOperandsAndResultType]> {
  let summary = "what a store in another type and a load would leave";
  let description = [{
    Between two row ops in one kernel, so that a value is the same whether or
    not it goes through memory. (C1) the type is bf16 or f16.
  }];
  let arguments = (ins AnyTypeOf<[F32, Model_Row1D]>:$value, TypeAttr:$stored);
  let results = (outs AnyTypeOf<[F32, Model_Row1D]>:$result);
  let assemblyFormat = "$value `to` $stored attr-dict `:` type($value)";
  let hasVerifier = 1;
}

def Model_RowConstantOp : Model_Op<"row_constant", [Pure]> {
  let summary = "a row of given numbers";
  let description = "(C1) there are as many numbers as elements.";
  let arguments = (ins DenseF32ArrayAttr:$values);
  let results = (outs Model_Row1D:$result);
  let assemblyFormat = "$values attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Model_RowRandomOp : Model_Op<"row_random", [Pure]> {
  let summary = "uniform numbers in [0, 1) from (seed, micro-batch, id, row)";
  let arguments = (ins I64Attr:$id);
  let results = (outs Model_Row1D:$result);
  let assemblyFormat = "attr-dict `:` type($result)";
}

def Model_RowStepOp : Model_Op<"row_step", [Pure]> {
  let summary = "a scalar of qlora_step_block, by the name of its field";
  let description = "(C1) the field is one of the f32 fields.";
  let arguments = (ins StrAttr:$field);
  let results = (outs F32:$result);
  let assemblyFormat = "$field attr-dict";
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Views
//===----------------------------------------------------------------------===//

class Model_View<string mnemonic>
    : Model_Op<mnemonic,
        [Pure, DeclareOpInterfaceMethods<Model_MemoryOp, ["getMemoryParts"]>]>;

def Model_SplitOp : Model_View<"split"> {
  let summary = "column ranges of a tensor";
  let description = [{
    (C1) the last dimensions of the results add up to that of x. (C2) the
    other dimensions and the element type, which is not 4-bit, are x's.
  }];
  let arguments = (ins Model_Tensor:$whole);
  let results = (outs Variadic<Model_Tensor>:$parts);
  let assemblyFormat =
      "$whole attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Model_ConcatOp : Model_View<"concat"> {
  let summary = "tensors side by side, or one above the other";
  let description = [{
    (C1) the last dimensions of the operands add up to that of the result;
    with `rows`, the first of two. (C2) the other dimensions and the element
    type, which is not 4-bit, are the result's.
  }];
  let arguments = (ins Variadic<Model_Tensor>:$parts, UnitAttr:$rows);
  let results = (outs Model_Tensor:$whole);
  let assemblyFormat =
      "$parts attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

#endif // QLORA_DIALECTS_MODEL_MODELOPS_TD
