// SPDX-License-Identifier: MIT

// The row ops of the model dialect, and the ops of their row regions. Included
// by ModelOps.td, whose conventions and classes apply.

#ifndef QLORA_DIALECTS_MODEL_MODELROWOPS_TD
#define QLORA_DIALECTS_MODEL_MODELROWOPS_TD

//===----------------------------------------------------------------------===//
// Row ops. C is the length of a row: the width of the weight if there is one,
// else the last dimension.
//===----------------------------------------------------------------------===//

def Model_RmsNormOp
    : Model_Row<"rms_norm", [], ["getRowColumns", "getRowMaps"]> {
  let summary = "y = x / sqrt(mean(x^2) + epsilon) * (offset + weight)";
  let description = [{
    Normalizes groups of C = |weight| elements: the whole hidden size, or one
    head (Qwen3's q and k norm). Gemma stores weights minus an `offset` of 1.
    (C1) the last dimension of x is a multiple of C. (C2) y has x's type. Zhang
    and Sennrich, 2019.
  }];
  let ownArguments = (ins Model_FloatTensor:$x, Model_FloatTensor:$weight,
    F64Attr:$epsilon, DefaultValuedAttr<F64Attr, "0.0">:$offset);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

def Model_LayerNormOp
    : Model_Row<"layer_norm", [], ["getRowColumns", "getRowMaps"]> {
  let summary =
      "y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias";
  let description = [{
    Normalizes groups of C = |weight| elements, with the biased variance
    (divided by C). (C1) the last dimension of x is a multiple of C. (C2) y has
    x's type. (C3) the bias is as wide as the weight. Ba et al., 2016.
  }];
  let ownArguments = (ins Model_FloatTensor:$x, Model_FloatTensor:$weight,
    Model_FloatTensor:$bias, F64Attr:$epsilon);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

def Model_RopeTableOp : Model_Row<"rope_table", [], ["getRowMaps"]> {
  let summary = "cos and sin of position * frequency";
  let description = [{
    positions [B, T] i32, frequencies f32 [rotated] (the rotated/2 inverse
    frequencies twice, as rotate-half needs them). cos and sin are [B, T, dim],
    times `attention_factor`. Columns from `rotated` on are not rotated: cos 1,
    sin 0.

    Scalings that depend on the length take `lengths` [B, T] i32: for each
    token, the number of tokens in its segment. Above `original_length`,
    `long_frequencies` replace `frequencies` (longrope; Ding et al., 2024), or
    with a `dynamic_factor` the base grows with length / original_length
    (dynamic NTK, as in Hugging Face). So a row has the same angles whatever
    else is in its batch.

    (C1) positions, and lengths if given, are i32 [B, T]. (C2) sin has cos's
    type, and frequencies an even number of elements, at most dim. (C3)
    long_frequencies has as many elements as frequencies; lengths and
    original_length require exactly one of long_frequencies and dynamic_factor,
    and the reverse.
  }];
  let ownArguments = (ins Model_Tensor:$positions,
    Optional<Model_Tensor>:$lengths,
    DenseF32ArrayAttr:$frequencies, F64Attr:$attention_factor,
    OptionalAttr<DenseF32ArrayAttr>:$long_frequencies,
    DefaultValuedAttr<F64Attr, "0.0">:$dynamic_factor,
    DefaultValuedAttr<I64Attr, "0">:$original_length);
  let results = (outs Model_FloatTensor:$cos, Model_FloatTensor:$sin);
  let assemblyFormat = [{
    $positions (`,` $lengths^)? attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def Model_RopeOp : Model_Row<"rope", [], ["getRowColumns", "getRowMaps"]> {
  let summary = "rotary position embedding: x * cos + rotate_half(x) * sin";
  let description = [{
    x [B, T, heads * dim], cos and sin [B, T, dim]; C = dim. rotate_half swaps
    the halves of the first `rotated` columns of a head (0: all columns). In the
    other columns, model.rope_table has cos 1 and sin 0. (C1) the last dimension
    of x is a multiple of dim. (C2) dim and `rotated` are even, and `rotated` is
    at most dim. (C3) y has x's type. Su et al., 2021, with the halves as in
    Hugging Face.
  }];
  let ownArguments = (ins Model_FloatTensor:$x, Model_FloatTensor:$cos,
    Model_FloatTensor:$sin, DefaultValuedAttr<I64Attr, "0">:$rotated);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

def Model_GluOp : Model_Row<"glu", [SameOperandsAndResultType]> {
  let summary = "gated linear unit: y = f(gate) * (up + offset)";
  let description = [{
    f is a function of `model.activation`: SwiGLU uses silu, GeGLU gelu or
    gelu_tanh. Shazeer, 2020. A `limit` (not 0) clamps gate and up from above,
    and up from below at -limit. With a `slope` silu is x * sigmoid(slope * x).
    gpt-oss uses a limit, a slope and an offset of 1. (C1) the limit is neither
    negative nor infinite. (C2) only silu has a slope other than 1.
  }];
  let ownArguments = (ins Model_FloatTensor:$gate, Model_FloatTensor:$up,
    Model_ActivationAttr:$kind, DefaultValuedAttr<F64Attr, "0.0">:$limit,
    DefaultValuedAttr<F64Attr, "1.0">:$slope,
    DefaultValuedAttr<F64Attr, "0.0">:$offset);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = "$kind $gate `,` $up attr-dict `:` type($result)";
  let builders = [OpBuilder<(ins "::mlir::Value":$gate, "::mlir::Value":$up,
    "Activation":$kind, CArg<"double", "0">:$limit, CArg<"double", "1">:$slope,
    CArg<"double", "0">:$offset), [{
      build($_builder, $_state, gate.getType(), gate, up, kind,
            ::llvm::APFloat(limit), ::llvm::APFloat(slope),
            ::llvm::APFloat(offset));
  }]>];
  let hasVerifier = 1;
}

def Model_ActivationOp : Model_Row<"activation", [SameOperandsAndResultType]> {
  let summary = "y = f(x), element by element";
  let description = [{
    gelu: x * (1 + erf(x / sqrt(2))) / 2. gelu_tanh: its approximation
    x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2. relu: max(x, 0).
    silu: x * sigmoid(x). Hendrycks and Gimpel, 2016. relu2: max(x, 0)^2. So et
    al., 2021.
  }];
  let ownArguments = (ins Model_FloatTensor:$x, Model_ActivationAttr:$kind);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = "$kind $x attr-dict `:` type($result)";
}

def Model_AddOp : Model_Row<"add",
    [SameOperandsAndResultType, Commutative]> {
  let summary = "y = a + b";
  let ownArguments = (ins Model_FloatTensor:$a, Model_FloatTensor:$b);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = "$a `,` $b attr-dict `:` type($result)";
}

def Model_ScaleOp : Model_Row<"scale", [SameOperandsAndResultType]> {
  let summary = "y = factor * x";
  let description = [{
    With `rounded`, the factor is rounded to x's storage type first, as Gemma
    does for embeddings.
  }];
  let ownArguments = (ins Model_FloatTensor:$x, F64Attr:$factor,
    UnitAttr:$rounded);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = "$x attr-dict `:` type($result)";
}

def Model_AddBiasOp : Model_Row<"add_bias", [], ["getRowMaps"]> {
  let summary = "y = x + bias, the same bias for every token";
  let description = [{
    (C1) the last dimension of x is |bias|. (C2) y has x's type.
  }];
  let ownArguments = (ins Model_FloatTensor:$x, Model_FloatTensor:$bias);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

def Model_MagnitudeOp : Model_Row<"magnitude", [], ["getRowMaps"]> {
  let summary = "y = x * magnitude / norm, the same for every token";
  let description = [{
    DoRA's rescaling of a matmul's result; `norm` holds the norms of the adapted
    weights. (C1) the last dimension of x is |magnitude| and |norm|. (C2) y has
    x's type.
  }];
  let ownArguments = (ins Model_FloatTensor:$x, Model_FloatTensor:$magnitude,
    Model_FloatTensor:$norm);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

def Model_GateRowsOp : Model_Row<"gate_rows", [], ["getRowMaps"]> {
  let summary = "y = x * sigmoid(gate), one gate for each row";
  let description = [{
    x [B, T, C], gate [B, T, 1]: the gate of an expert that all tokens share.
    (C1) the gate has one number per row of x. (C2) y has x's type.
  }];
  let ownArguments = (ins Model_FloatTensor:$x, Model_FloatTensor:$gate);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

/// Trait of ops that only training computes. In evaluation, the first operand
/// of such an op replaces its result.
def Model_TrainingOnly : NativeOpTrait<"TrainingOnly"> {
  let cppNamespace = "::qlora::model";
}

def Model_DropoutOp : Model_Row<"dropout",
    [SameOperandsAndResultType, Model_TrainingOnly,
     DeclareOpInterfaceMethods<Model_ColumnwiseOp>]> {
  let summary = "y = x * keep / (1 - probability)";
  let description = [{
    keep is 1 where philox(seed, micro-batch, id, row, column) >= probability, a
    pure function of its arguments: recomputing gives the same mask
    (runtime/Kernels/Math/Philox.h). Evaluation leaves the op out. With `shared`
    the columns of x are sharded equally over ranks, and x is this rank's shard.
    (C1) 0 < probability < 1.
  }];
  let ownArguments = (ins Model_FloatTensor:$x, F64Attr:$probability,
    I64Attr:$id, UnitAttr:$shared);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = "$x attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Model_NoiseOp : Model_Row<"noise",
    [SameOperandsAndResultType, Model_TrainingOnly]> {
  let summary = "y = x + magnitude / sqrt(L) * u, u uniform in [-1, 1)";
  let description = [{
    NEFTune's noise on embeddings (Jain et al., 2023): `magnitude` is alpha /
    sqrt(columns), and L is the number of tokens of the micro-batch's longest
    row. u is a pure function of seed, micro-batch, id, row and column.
    Evaluation leaves the op out. (C1) the magnitude is finite and positive.
  }];
  let ownArguments = (ins Model_FloatTensor:$x, F64Attr:$magnitude,
    I64Attr:$id);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = "$x attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Model_RowsOp : Model_StagedOp<Model_Dialect, "rows",
    [Pure, IsolatedFromAbove, Model_MemoryOp,
     DeclareOpInterfaceMethods<Model_RowOp, ["getRowColumns", "getRowMaps",
                                             "isScalarResult"]>,
     SingleBlockImplicitTerminator<"RowYieldOp">]> {
  let summary = "arithmetic over rows, as a region";
  let description = [{
    Created by gradients of row ops and by `fuse-rows`. (C1) one map per
    operand, and one region argument per operand, of the type that RowOp
    defines. (C2) one yielded `tensor<Cxf32>` per result, or `f32` for one
    number per row; there is a first result, and it is a `tensor<Cxf32>`. (C3)
    `columns` is positive and divides the last dimension of every result of
    rows. (C4) every row in the region has C elements. (C5) `label` is an
    identifier: the name of the kernel.
  }];
  let ownArguments = (ins Variadic<Model_Tensor>:$inputs, I64Attr:$columns,
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
  let summary = "largest element of a row; NaN if an element is NaN";
}

def Model_RowSplatOp : Model_Op<"row_splat", [Pure]> {
  let summary = "a row filled with one number";
  let arguments = (ins F32:$value);
  let results = (outs Model_Row1D:$result);
  let assemblyFormat = "$value attr-dict `:` type($result)";
}

def Model_RowRotateOp : Model_Op<"row_rotate",
    [Pure, SameOperandsAndResultType]> {
  let summary = "rotate_half: (-second half, first half)";
  let description = [{
    Rotates the first `width` elements (0: all); the other elements become 0.
    (C1) the row and the rotated width have an even number of elements, and the
    width is at most the row's.
  }];
  let arguments = (ins Model_Row1D:$row,
    DefaultValuedAttr<I64Attr, "0">:$width);
  let results = (outs Model_Row1D:$result);
  let assemblyFormat = "$row attr-dict `:` type($result)";
  let extraClassDeclaration = [{
    /// Number of leading elements that are rotated.
    int64_t getTurned() {
      int64_t all = getRow().getType().getDimSize(0);
      return getWidth() ? static_cast<int64_t>(getWidth()) : all;
    }
  }];
  let hasVerifier = 1;
}

def Model_RowSigmoidOp : Model_Op<"row_sigmoid",
    [Pure, SameOperandsAndResultType]> {
  let summary = "1 / (1 + exp(-x))";
  let description = [{
    A separate op, because its derivative s (1 - s) is finite where the
    quotient's is 0 * inf.
  }];
  let arguments = (ins Model_Row1D:$row);
  let results = (outs Model_Row1D:$result);
  let assemblyFormat = "$row attr-dict `:` type($result)";
}

def Model_RowRoundOp : Model_Op<"row_round",
    [Pure, SameOperandsAndResultType]> {
  let summary = "the value after a store in another type and a load";
  let description = [{
    Rounds a value between two row ops fused into one kernel exactly as a store
    to memory would. (C1) the type is bf16 or f16.
  }];
  let arguments = (ins AnyTypeOf<[F32, Model_Row1D]>:$value, TypeAttr:$stored);
  let results = (outs AnyTypeOf<[F32, Model_Row1D]>:$result);
  let assemblyFormat = "$value `to` $stored attr-dict `:` type($value)";
  let hasVerifier = 1;
}

def Model_RowConstantOp : Model_Op<"row_constant", [Pure]> {
  let summary = "a row of given numbers";
  let description = "(C1) the number of values is the number of elements.";
  let arguments = (ins DenseF32ArrayAttr:$values);
  let results = (outs Model_Row1D:$result);
  let assemblyFormat = "$values attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Model_RowRandomOp : Model_Op<"row_random", [Pure]> {
  let summary = "uniform numbers in [0, 1) from (seed, micro-batch, id, row)";
  let description = [{
    With `shared` the columns are sharded equally over ranks, and the result
    covers this rank's shard. With `runs` > 1 the op has the rows of pipeline
    chunk `run` of `runs`, and numbers depend on the row in the whole batch. Row
    r of the chunk is row (r / run_rows * runs + run) * run_rows + r % run_rows
    of the batch.
  }];
  let arguments = (ins I64Attr:$id, UnitAttr:$shared,
    DefaultValuedAttr<I64Attr, "1">:$runs, DefaultValuedAttr<I64Attr, "0">:$run,
    DefaultValuedAttr<I64Attr, "0">:$run_rows);
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

#endif // QLORA_DIALECTS_MODEL_MODELROWOPS_TD
