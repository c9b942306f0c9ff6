// SPDX-License-Identifier: MIT

// The train dialect: what training adds to the model's forward ops.

#ifndef QLORA_DIALECTS_TRAIN_TRAINOPS_TD
#define QLORA_DIALECTS_TRAIN_TRAINOPS_TD

include "dialects/Model/ModelInterfaces.td"
include "dialects/Model/ModelTensors.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/OpBase.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def Train_Dialect : Dialect {
  let name = "train";
  let cppNamespace = "::qlora::train";
  let summary = "Gradients, updates, decoding and communication, on tensors";
  let description = [{
    ```
     model ──► train ──► program ──► train.so
               ^^^^^
    ```

    `build-train-step` replaces the forward function by `train.step`s: one
    `accumulate` (forward, backward, gradients added to the gradient arena)
    and one `evaluate` per compiled length, and one `update` (divide, clip,
    optimizers); where trained parameters start at a function of others, one
    `initialize`; where what is trained is not what is used, one `average` and
    one `continue` (`schedule_free`). Inside are model ops and the ops below.

    Trainable parameters and their gradients are flat f32 arenas of one layout;
    so is, in bf16, a copy of the parameters for who rounds them anyway, and in
    f32 what rounding has left of gradients that were sent in fewer bits, on each
    rank its own (`compress-gradients`). What optimizers keep is an arena of its own (UpdatePiece in Optimizers.h). The
    first kFlatColumns elements of the gradient
    arena are for statistics (kStatistics in Train.h), so that they are summed
    over ranks with the gradients; then come the parameters, those together
    that are updated alike (FlatGroup in Train.h), and of these in the order in
    which the backward finishes their gradients.

    How an op is differentiated is the interface `Differentiable`, attached
    to the model's ops from outside (ModelGradients.cpp), so that the model
    dialect knows nothing of training.

    ```mlir
    train.step accumulate batch 2 length 32 {
    ^bb0(%ids: tensor<2x32xi32>, ...):
      ...
      %dw = train.linear_weight_grad %dy, %x : ...
      train.accumulate @"...lora_A.weight", %dw : tensor<8x64xf32>
    }
    ```
  }];
  let useDefaultAttributePrinterParser = 1;
  let dependentDialects = ["::qlora::model::ModelDialect"];
}

class Train_Op<string mnemonic, list<Trait> traits = []>
    : Model_StagedOp<Train_Dialect, mnemonic, traits>;
class Train_Library<string mnemonic, list<Trait> traits = []>
    : Train_Op<mnemonic,
               [Pure, Model_MemoryOp,
                DeclareOpInterfaceMethods<Model_LibraryOp>] # traits>;
/// An op that writes memory outside of the step.
class Train_Store<string mnemonic, list<Trait> traits = []>
    : Train_Op<mnemonic,
        [DeclareOpInterfaceMethods<Model_MemoryOp, ["getMemoryStores"]>]
            # traits>;

def Train_StepKind : I32EnumAttr<"StepKind", "what a step is for", [
    I32EnumAttrCase<"Accumulate", 0, "accumulate">,
    I32EnumAttrCase<"Update", 1, "update">,
    I32EnumAttrCase<"Evaluate", 2, "evaluate">,
    I32EnumAttrCase<"Initialize", 3, "initialize">,
    I32EnumAttrCase<"Average", 4, "average">,
    I32EnumAttrCase<"Continue", 5, "continue">]> {
  let cppNamespace = "::qlora::train";
  let genSpecializedAttr = 0;
}
def Train_StepKindAttr : EnumAttr<Train_Dialect, Train_StepKind, "kind">;

def Train_FlatKind : I32EnumAttr<"FlatKind", "a flat arena", [
    I32EnumAttrCase<"Trainable", 0, "trainable">,
    I32EnumAttrCase<"Gradient", 1, "gradient">,
    I32EnumAttrCase<"State", 2, "state">,
    I32EnumAttrCase<"Rounded", 3, "rounded">,
    I32EnumAttrCase<"Residual", 4, "residual">]> {
  let cppNamespace = "::qlora::train";
  let genSpecializedAttr = 0;
}
def Train_FlatKindAttr : EnumAttr<Train_Dialect, Train_FlatKind, "flat">;

//===----------------------------------------------------------------------===//
// Structure
//===----------------------------------------------------------------------===//

def Train_StepOp : Op<Train_Dialect, "step", [IsolatedFromAbove, NoTerminator,
                                              SingleBlock]> {
  let summary = "a piece of straight-line code that the runtime can run";
  let description = [{
    Arguments of `accumulate` and `evaluate`: those of the forward function,
    with the input that each is in `inputs`. (C1) as many arguments as
    inputs. (C2) others have none. (C3) each input is one of
    kStepInputs, and there once. (C4) ops of the backward come after all of the
    forward, but where the batch is done in several `chunks`, each of which has
    both. (C5) only `accumulate` has a backward.
  }];
  let arguments = (ins Train_StepKindAttr:$kind, I64Attr:$batch,
                       I64Attr:$length, StrArrayAttr:$inputs,
                       DefaultValuedAttr<I64Attr, "1">:$chunks);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat =
      "$kind `batch` $batch `length` $length $inputs attr-dict-with-keyword $body";
  let hasVerifier = 1;
  let hasRegionVerifier = 1;
}

def Train_AccumulateOp : Train_Store<"accumulate",
    [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "adds a gradient to that of a parameter";
  let description = [{
    (C1) the gradient is f32 and has as many elements as the parameter, or as
    this rank's piece of it. (C2) the parameter is trainable. With `part` it is of
    what this rank uses of the parameter, and so are the elements.
  }];
  let ownArguments = (ins FlatSymbolRefAttr:$parameter,
                       Model_Tensor:$gradient,
                       Model_UsedPartAttr:$part);
  let assemblyFormat = "$parameter `,` $gradient attr-dict `:` type($gradient)";
}

def Train_ScatterGradientOp : Train_Op<"scatter_gradient",
    [Pure, Model_MemoryOp,
     DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "this rank's piece of the sum of a gradient over the ranks";
  let description = [{
    Of a parameter of which each rank of the group FSDP holds a piece; they do it
    together. (C1) the gradient is f32 and has as many elements as the parameter,
    and the result as many as a piece.
  }];
  let ownArguments = (ins FlatSymbolRefAttr:$parameter, Model_Tensor:$gradient);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = [{
    $parameter `,` $gradient attr-dict
    `:` functional-type(operands, results)
  }];
}

def Train_InitializeOp : Train_Store<"initialize",
    [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "the value at which a trained parameter starts";
  let description = "(C1), (C2) as for `accumulate`.";
  let ownArguments = (ins FlatSymbolRefAttr:$parameter, Model_Tensor:$value);
  let assemblyFormat = "$parameter `,` $value attr-dict `:` type($value)";
}

def Train_ResultOp : Train_Store<"result"> {
  let summary = "names a value that the runtime reads";
  let description = [{
    One of kStatistics, `correct` or `grad_norm`. With `accumulate` the
    value is added to a statistics element of the gradient arena.
    (C1) the name is one of these. (C2) of kStatistics, where it accumulates.
  }];
  let ownArguments = (ins StrAttr:$name, Model_Tensor:$value,
                       UnitAttr:$accumulate);
  let assemblyFormat = "$name `,` $value attr-dict `:` type($value)";
  let hasVerifier = 1;
}

def Train_AllReduceOp : Train_Store<"all_reduce"> {
  let summary = "sums a range of the gradient arena over all ranks";
  let description = [{
    Elements [offset, offset + elements). Runs in the last micro-batch of a
    step only. Starts as soon as the `train.accumulate`s before it are done.
    With `pieces` these are of what ranks hold in pieces, and the ranks are those
    that hold the same ones (groups REPLICAS and TP).
  }];
  let ownArguments = (ins I64Attr:$bucket, I64Attr:$offset, I64Attr:$elements,
                       UnitAttr:$pieces);
  let assemblyFormat =
      "$bucket `offset` $offset `elements` $elements attr-dict";
}

//===----------------------------------------------------------------------===//
// Host memory
//===----------------------------------------------------------------------===//

def Train_CopyToHostOp : Train_Op<"copy_to_host",
    [Pure, Model_MemoryOp, SameOperandsAndResultType]> {
  let summary = "a value of the forward in host memory, for the backward";
  let description = [{
    Only `copy_from_host` reads the result: kernels do not. Ops go on beside the
    copy, and beside `behind` such copies before it; for all others they wait, so
    that the memory of what these read is free. (C1) `behind` is not negative.
  }];
  let ownArguments = (ins Model_Tensor:$x, I64Attr:$behind);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = "$x `behind` $behind attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Train_CopyFromHostOp : Train_Op<"copy_from_host",
    [Pure, Model_MemoryOp, SameOperandsAndResultType]> {
  let summary = "it, in memory of the step again";
  let description = [{
    Ops go on beside the copy until one reads the result; first they wait for all
    copies to the host. (C1) a `copy_to_host` makes x.
  }];
  let ownArguments = (ins Model_Tensor:$x);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = "$x attr-dict `:` type($result)";
  let extraClassDeclaration = [{
    /// Returns the value that was copied.
    ::mlir::Value getOriginal();
  }];
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Decoding
//===----------------------------------------------------------------------===//

def Train_DecodeOp : Train_Library<"decode"> {
  let summary = "the numbers that a stored weight stands for";
  let description = [{
    From NF4, bf16 or f16 to the compute type, once, into scratch.
    (C1) same shape. (C2) the result is not 4-bit.
  }];
  let ownArguments = (ins Model_Tensor:$weight);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat =
      "$weight attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Rows in 8 bits
//===----------------------------------------------------------------------===//

/// Created after reverse mode, so these ops need no derivative rule.
class Train_Coding<string mnemonic, list<string> methods>
    : Train_Op<mnemonic,
        [Pure, Model_MemoryOp,
         DeclareOpInterfaceMethods<Model_RowOp, methods>]> {
  let hasVerifier = 1;
}

def Train_EncodeRowsOp : Train_Coding<"encode_rows", ["isScalarResult"]> {
  let summary = "a row as integers from -127 to 127 and their scale";
  let description = [{
    scale = max(|x|) / 127 of each row, codes = x / scale, rounded to nearest,
    ties to even. Of a row below 1e-30 the codes are 0; a row with an infinity
    or NaN has such a scale. (C1) codes are i8 of x's shape. (C2) scales are
    f32, one per row.
  }];
  let ownArguments = (ins Model_FloatTensor:$x);
  let results = (outs Model_RowTensor:$codes, Model_RowTensor:$scales);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
}

def Train_DecodeRowsOp : Train_Coding<"decode_rows", []> {
  let summary = "x = codes * scale";
  let description = [{
    Within half a scale of what was encoded. (C1), (C2) as in encode_rows.
  }];
  let ownArguments = (ins Model_RowTensor:$codes, Model_RowTensor:$scales);
  let results = (outs Model_FloatTensor:$x);
  let assemblyFormat =
      "$codes `,` $scales attr-dict `:` functional-type(operands, results)";
}

def Train_LeftByCodesOp : Train_Coding<"left_by_codes", []> {
  let summary = "x - codes * scale, of rows that are finite; of others 0";
  let description = [{
    What is added to the next x, so that errors do not add up (Seide et al.,
    2014). (C1), (C2) as in encode_rows.
  }];
  let ownArguments = (ins Model_FloatTensor:$x, Model_RowTensor:$codes,
                       Model_RowTensor:$scales);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = [{
    $x `,` $codes `,` $scales attr-dict `:` functional-type(operands, results)
  }];
}

//===----------------------------------------------------------------------===//
// Gradients of library ops
//===--------------------------------------------------------------------------===//

def Train_LinearWeightGradOp
    : Train_Library<"linear_weight_grad", [Model_AccumulatingOp]> {
  let summary = "dW = init + scale * dy^T . x";
  let description = [{
    dy [B, T, out], x [B, T, in], dW and init f32 [out, in]; of a weight
    [in, out] the two change places. (C1) shapes agree and dW is f32.
  }];
  let ownArguments = (ins Model_Tensor:$dy, Model_Tensor:$x,
    Optional<Model_Tensor>:$init, F64Attr:$scale);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = [{
    $dy `,` $x (`init` $init^)? attr-dict
    `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def Train_AttentionGradOp : Train_Library<"attention_grad"> {
  let summary = "gradients of model.attention";
  let ownArguments = (ins Model_Tensor:$q, Model_Tensor:$k,
    Model_Tensor:$v, Model_Tensor:$segments, Model_Tensor:$result,
    Model_Tensor:$lse, Model_Tensor:$dresult, I64Attr:$heads,
    I64Attr:$kv_heads, I64Attr:$head_dim, I64Attr:$window, F64Attr:$scale,
    DefaultValuedAttr<F64Attr, "0.0">:$cap);
  let results = (outs Model_Tensor:$dq, Model_Tensor:$dk,
    Model_Tensor:$dv);
  let assemblyFormat = "operands attr-dict `:` functional-type(operands, results)";
}

def Train_HeadLossGradOp
    : Train_Library<"head_loss_grad",
        [Model_WeightedMatmul, Model_TableOp]> {
  let summary = "model.head_loss together with its gradients";
  let description = [{
    dhidden is that of the loss sum, of which every line of hidden has its own
    share. `dtrained` is there where more is trained: W, of whose shape it is
    in f32, or columns in the place of products, of whose type it is.
  }];
  let ownArguments = (ins Model_Tensor:$hidden, Model_Tensor:$weight,
    Model_Tensor:$targets, Variadic<Model_Tensor>:$replaced,
    DefaultValuedAttr<F64Attr, "0.0">:$cap);
  let results = (outs Model_Tensor:$loss, Model_Tensor:$count,
    Model_Tensor:$correct, Model_Tensor:$dhidden,
    Optional<Model_Tensor>:$dtrained);
  let assemblyFormat = "operands attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Model_HeadMethods;
}

def Train_EmbeddingGradOp : Train_Library<"embedding_grad"> {
  let summary = "dtable[ids] += dy, but where ids are `padding`";
  let description = [{
    With `turned` the table is [H, V]: dtable[:, ids] += dy.
  }];
  let ownArguments = (ins Model_Tensor:$ids, Model_Tensor:$dy,
    DefaultValuedAttr<I64Attr, "-1">:$padding, UnitAttr:$turned);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = "operands attr-dict `:` functional-type(operands, results)";
}

// Included between gradients and updates: the order of the reference page.
include "dialects/Train/TrainExpertOps.td"

//===----------------------------------------------------------------------===//
// Update
//===----------------------------------------------------------------------===//

def Train_FlatOp : Train_Op<"flat",
    [DeclareOpInterfaceMethods<Model_MemoryOp, ["getOutsideMemory"]>]> {
  let summary = "a flat arena as rows of kFlatColumns elements";
  let description = [{
    From `row` on, which counts from the first parameter, as many as the result
    has, whose own rows may be parts of them; with `statistics` the whole arena,
    of which they are the first row. With `parameter` rows of that one; of the
    state arena `row` is a byte. With `pieces` so many ranges of these rows
    follow each other, and each rank has that of its number in the group FSDP, or
    with `of_run` among all ranks.
  }];
  let ownArguments = (ins Train_FlatKindAttr:$flat,
    OptionalAttr<FlatSymbolRefAttr>:$parameter, UnitAttr:$statistics,
    DefaultValuedAttr<I64Attr, "0">:$row,
    DefaultValuedAttr<I64Attr, "1">:$pieces,
    UnitAttr:$of_run);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = "$flat ($parameter^)? attr-dict `:` type($result)";
}

def Train_StoreFlatOp : Train_Store<"store_flat"> {
  let summary = "the new contents of a flat arena, from a row on";
  let description = "`pieces` and `of_run` as for `flat`.";
  let ownArguments = (ins Train_FlatKindAttr:$flat,
    OptionalAttr<FlatSymbolRefAttr>:$parameter, Model_Tensor:$value,
    DefaultValuedAttr<I64Attr, "0">:$row,
    DefaultValuedAttr<I64Attr, "1">:$pieces,
    UnitAttr:$of_run);
  let assemblyFormat =
      "$flat ($parameter^)? `,` $value attr-dict `:` type($value)";
}

def Train_GatherFlatOp : Train_Op<"gather_flat",
    [DeclareOpInterfaceMethods<Model_MemoryOp,
                               ["getOutsideMemory", "getMemoryStores"]>]> {
  let summary = "rows of which each rank has made its piece, on all of them";
  let description = [{
    N pieces of equal rows from `row` on, in the place of `flat`; the ranks of
    the group FSDP do it together. (C1) the rows are a multiple of `pieces`.
  }];
  let ownArguments = (ins Train_FlatKindAttr:$flat, I64Attr:$row,
                          I64Attr:$pieces);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = "$flat attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Train_ClearOp : Train_Store<"clear"> {
  let summary = "zeros a flat arena";
  let ownArguments = (ins Train_FlatKindAttr:$flat);
  let assemblyFormat = "$flat attr-dict";
}

def Train_ClipNormOp : Train_Library<"clip_norm"> {
  let summary = "norm of the mean gradient, and what AdamW scales it with";
  let description = [{
    norm = |g| / count; scale = min(1, max_grad_norm / (norm + 1e-6)) / count
    (no limit where max_grad_norm is 0), NaN where the norm or the loss is not
    finite. f32 [1] each. The gradient is that of what each rank has whole, with
    the statistics row before it, which has the count and is not part of the norm;
    `lengths`, one of each rank of the group FSDP, are of the pieces.
  }];
  let ownArguments = (ins Model_Tensor:$gradient,
                       Optional<Model_Tensor>:$lengths);
  let results = (outs Model_Tensor:$norm, Model_Tensor:$scale);
  let assemblyFormat = [{
    $gradient (`,` $lengths^)? attr-dict
    `:` functional-type(operands, results)
  }];
}

def Train_LengthOp : Train_Library<"length"> {
  let summary = "the length of a vector, f32 [1]";
  let ownArguments = (ins Model_Tensor:$x);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
}

/// Operands: p, the optimizer states, g of p's shape, and scale [1], which
/// multiplies g. Results: the new p and states. Rates, betas and bias
/// corrections come from the step block; the learning rate is multiplied by
/// `rate_scale`, and `undecayed` disables weight decay. If scale is NaN,
/// because a gradient or the loss was not finite, the step changes nothing.
class Train_Update<string mnemonic, list<Trait> traits>
    : Train_Op<mnemonic, [Pure] # traits> {
  dag updateArguments = (ins Model_Tensor:$p, Variadic<Model_Tensor>:$states,
    Model_Tensor:$g, Model_Tensor:$scale,
    DefaultValuedAttr<F64Attr, "1.0">:$rate_scale, UnitAttr:$undecayed);
  let ownArguments = updateArguments;
  let results = (outs Model_Tensor:$new_p, Variadic<Model_Tensor>:$new_states);
  let assemblyFormat = "operands attr-dict `:` functional-type(operands, results)";
}
class Train_RowUpdate<string mnemonic>
    : Train_Update<mnemonic, [Model_MemoryOp,
                              DeclareOpInterfaceMethods<Model_RowOp>]>;

def Train_AdamWOp : Train_RowUpdate<"adamw"> {
  let summary = "AdamW as torch has it (Loshchilov and Hutter, 2019)";
  let description = "Keeps m and v. All [R, kFlatColumns].";
}

def Train_LionOp : Train_RowUpdate<"lion"> {
  let summary = "Lion as bitsandbytes has it (Chen et al., 2023)";
  let description = "Keeps m.";
}

def Train_ScheduleFreeOp : Train_RowUpdate<"schedule_free"> {
  let summary = "AdamW without a schedule (Defazio et al., 2024)";
  let description = [{
    Keeps z and v. p is y, at which gradients are taken; what is used is the
    average x (`schedule_free_switch`). z starts at p.
  }];
}

def Train_ScheduleFreeSwitchOp : Train_Op<"schedule_free_switch",
    [Pure, Model_MemoryOp, DeclareOpInterfaceMethods<Model_RowOp>]> {
  let summary = "x of y and z; with `back` y of x and z";
  let ownArguments = (ins Model_Tensor:$p, Model_Tensor:$z, UnitAttr:$back);
  let results = (outs Model_Tensor:$new_p);
  let assemblyFormat = "operands attr-dict `:` functional-type(operands, results)";
}

def Train_UpdateOp : Train_Update<"update",
    [DeclareOpInterfaceMethods<Model_MemoryOp, ["getMemoryTies"]>,
     DeclareOpInterfaceMethods<Model_LibraryOp>]> {
  let summary = "an update of one tensor by the kernel of that name";
  let description = "p and g [R, C], what is kept as the kernel has it.";
  let ownArguments = !con((ins StrAttr:$kernel), updateArguments);
  let assemblyFormat =
      "$kernel operands attr-dict `:` functional-type(operands, results)";
}

def Train_RoundOp : Train_Op<"round",
    [Pure, Model_MemoryOp, DeclareOpInterfaceMethods<Model_RowOp>]> {
  let summary = "the same numbers in the type of the result";
  let ownArguments = (ins Model_FloatTensor:$x);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
}

#endif // QLORA_DIALECTS_TRAIN_TRAINOPS_TD
