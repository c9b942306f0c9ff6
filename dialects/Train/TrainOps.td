// SPDX-License-Identifier: MIT

// The train dialect: what training adds to the model's forward ops.

#ifndef QLORA_DIALECTS_TRAIN_TRAINOPS_TD
#define QLORA_DIALECTS_TRAIN_TRAINOPS_TD

include "dialects/Model/ModelInterfaces.td"
include "dialects/Model/ModelTypeConstraints.td"
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
    optimizers). If parameters are initialized with a function of other weights,
    there is one `initialize`. With `schedule_free`, which evaluates an average
    of the trained weights, there are one `average` and one `continue`.
    Steps contain model ops and the ops below.

    Trainable parameters and their gradients are flat f32 arenas with one
    layout. Two optional arenas have the same layout: a bf16 copy of the
    parameters (`round-adapters`), and each rank's f32 quantization error of
    compressed gradients (`compress-gradients`). Optimizer states have another
    arena (UpdatePiece in Optimizers.h). The first kFlatColumns elements of the
    gradient arena are for statistics (kStatistics in Train.h), so that they are
    summed over ranks with the gradients. The parameters follow, grouped by how
    they are updated (FlatGroup in Train.h), and within a group in the order in
    which the backward finishes their gradients.

    The interface `Differentiable` defines how an op is differentiated. It is
    attached to the model's ops from outside (ModelGradients.cpp), so the model
    dialect does not depend on training.

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
    I32EnumAttrCase<"Continue", 5, "continue">,
    I32EnumAttrCase<"Prefill", 6, "prefill">,
    I32EnumAttrCase<"Decode", 7, "decode">]> {
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
  let summary = "straight-line code that the runtime can run";
  let description = [{
    `inputs` names the arguments, which are those of a function. (C1) there are
    as many as inputs. (C2) steps that process no tokens have none. (C3) each
    input is one of kStepInputs, and occurs once. (C4) all forward ops come
    before the backward, or, if the batch is split into several `chunks`, before
    the backward of their chunk. (C5) only `accumulate` has a backward.
  }];
  let arguments = (ins Train_StepKindAttr:$kind, I64Attr:$batch,
                       I64Attr:$length, StrArrayAttr:$inputs,
                       DefaultValuedAttr<I64Attr, "1">:$chunks);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = [{
    $kind `batch` $batch `length` $length $inputs attr-dict-with-keyword $body
  }];
  let hasVerifier = 1;
  let hasRegionVerifier = 1;
}

def Train_AccumulateOp : Train_Store<"accumulate",
    [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "adds to the gradient of a parameter";
  let description = [{
    (C1) the gradient is f32 and has as many elements as the parameter, or as
    this rank's piece of it, or with `part` as the range that this rank uses.
    (C2) the parameter is trainable.
  }];
  let ownArguments = (ins FlatSymbolRefAttr:$parameter, Model_Tensor:$gradient,
                       Model_UsedPartAttr:$part);
  let assemblyFormat = "$parameter `,` $gradient attr-dict `:` type($gradient)";
}

def Train_ScatterGradientOp : Train_Op<"scatter_gradient",
    [Pure, Model_MemoryOp,
     DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "this rank's piece of a gradient's sum over ranks";
  let description = [{
    A reduce-scatter over the group FSDP, whose ranks hold the pieces of the
    parameter. (C1) the gradient is f32 and has as many elements as the
    parameter, and the result as many as a piece.
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
  let summary = "the initial value of a trained parameter";
  let description = "`value` obeys (C1) and (C2) of `train.accumulate`.";
  let ownArguments = (ins FlatSymbolRefAttr:$parameter, Model_Tensor:$value);
  let assemblyFormat = "$parameter `,` $value attr-dict `:` type($value)";
}

def Train_ResultOp : Train_Store<"result"> {
  let summary = "names a value that the runtime reads";
  let description = [{
    (C1) the name is one of kStatistics or kOtherResults.
    (C2) with `accumulate` it is one of kStatistics: the value is added to a
    statistics element of the gradient arena.
  }];
  let ownArguments = (ins StrAttr:$name, Model_Tensor:$value,
                       UnitAttr:$accumulate);
  let assemblyFormat = "$name `,` $value attr-dict `:` type($value)";
  let hasVerifier = 1;
}

def Train_AllReduceOp : Train_Store<"all_reduce"> {
  let summary = "sums a range of the gradient arena over all ranks";
  let description = [{
    Reduces elements [offset, offset + elements), in the last micro-batch of a
    step only. Runs as soon as the `train.accumulate`s before it are done.
    With `pieces` the elements are gradients of pieces, and the group consists
    of the ranks with equal pieces (groups REPLICAS and TP).
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
  let summary = "copies a forward value to host memory, for the backward";
  let description = [{
    Only `copy_from_host` may read the result. Later ops do not wait for this
    copy or the last `behind` copies before it. They wait for all older copies,
    whose source memory is then free. (C1) `behind` is not negative.
  }];
  let ownArguments = (ins Model_Tensor:$x, I64Attr:$behind);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = "$x `behind` $behind attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Train_CopyFromHostOp : Train_Op<"copy_from_host",
    [Pure, Model_MemoryOp, SameOperandsAndResultType]> {
  let summary = "copies a value from the host to memory of the step";
  let description = [{
    Starts after all copies to the host; later ops run concurrently until one
    reads the result. (C1) x is the result of a `copy_to_host`.
  }];
  let ownArguments = (ins Model_Tensor:$x);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = "$x attr-dict `:` type($result)";
  let extraClassDeclaration = [{
    /// Returns the value that the `copy_to_host` copied.
    ::mlir::Value getOriginal();
  }];
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Decoding
//===----------------------------------------------------------------------===//

def Train_DecodeOp : Train_Library<"decode"> {
  let summary = "decodes a stored weight";
  let description = [{
    Decodes a 4-bit or 8-bit format, bf16 or f16 to the compute type, into
    memory of the step. (C1) the shapes are equal. (C2) the result is not 4-bit.
  }];
  let ownArguments = (ins Model_Tensor:$weight);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Rows in 8 bits
//===----------------------------------------------------------------------===//

/// A row op on 8-bit rows. Passes create these ops after reverse mode, so they
/// need no derivative rule.
class Train_Coding<string mnemonic, list<string> methods>
    : Train_Op<mnemonic,
        [Pure, Model_MemoryOp,
         DeclareOpInterfaceMethods<Model_RowOp, methods>]> {
  let hasVerifier = 1;
}

def Train_EncodeRowsOp : Train_Coding<"encode_rows", ["isScalarResult"]> {
  let summary = "quantizes rows to integers from -127 to 127 with a scale";
  let description = [{
    scale = max(|x|) / 127 of each row; codes = x / scale, rounded to nearest,
    ties to even. If max(|x|) is below 1e-30, the codes are 0; if a row has an
    infinity or NaN, so has its scale. (C1) codes are i8 of x's shape. (C2)
    scales are f32, one per row.
  }];
  let ownArguments = (ins Model_FloatTensor:$x);
  let results = (outs Model_RowTensor:$codes, Model_RowTensor:$scales);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
}

def Train_DecodeRowsOp : Train_Coding<"decode_rows", ["getRowMaps"]> {
  let summary = "x = codes * scale";
  let description = [{
    The result differs from the encoded x by at most half a scale. (C1), (C2) as
    in encode_rows.
  }];
  let ownArguments = (ins Model_RowTensor:$codes, Model_RowTensor:$scales);
  let results = (outs Model_FloatTensor:$x);
  let assemblyFormat = Model_OperandsFormat;
}

def Train_LeftByCodesOp : Train_Coding<"left_by_codes", ["getRowMaps"]> {
  let summary = "quantization error x - codes * scale; 0 for non-finite rows";
  let description = [{
    The error is added to the next x, so that errors do not accumulate (Seide et
    al., 2014). (C1), (C2) as in encode_rows.
  }];
  let ownArguments = (ins Model_FloatTensor:$x, Model_RowTensor:$codes,
                       Model_RowTensor:$scales);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = Model_OperandsFormat;
}

//===----------------------------------------------------------------------===//
// Gradients of library ops
//===----------------------------------------------------------------------===//

def Train_LinearWeightGradOp
    : Train_Library<"linear_weight_grad", [Model_AccumulatingOp]> {
  let summary = "dW = init + scale * dy^T . x";
  let description = [{
    dy [B, T, out], x [B, T, in], dW and init f32 [out, in]. For a weight [in,
    out], dy and x change places. (C1) shapes agree and dW is f32.
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
  let assemblyFormat = Model_OperandsFormat;
}

def Train_HeadLossGradOp
    : Train_Library<"head_loss_grad",
        [Model_WeightedMatmul, Model_TableOp]> {
  let summary = "model.head_loss together with its gradients";
  let description = [{
    dhidden is the gradient of the loss sum; its rows for a sequence depend on
    that sequence only. `dtrained` is present if W or `columns` is trained: the
    gradient of W, f32 in W's shape, or of columns, in their type.
  }];
  let ownArguments = (ins Model_Tensor:$hidden, Model_Tensor:$weight,
    Model_Tensor:$targets, Variadic<Model_Tensor>:$replaced,
    DefaultValuedAttr<F64Attr, "0.0">:$cap,
    DefaultValuedAttr<F64Attr, "0.0">:$label_smoothing,
    UnitAttr:$own_probability);
  let results = (outs Model_Tensor:$loss, Model_Tensor:$count,
    Model_Tensor:$correct, Model_Tensor:$dhidden,
    Optional<Model_Tensor>:$dtrained);
  let assemblyFormat = Model_OperandsFormat;
  let extraClassDeclaration = Model_HeadMethods;
}

def Train_EmbeddingGradOp : Train_Library<"embedding_grad"> {
  let summary = "dtable[ids] += dy, except where ids are `padding`";
  let description = [{
    With `turned` the table is [H, V]: dtable[:, ids] += dy.
  }];
  let ownArguments = (ins Model_Tensor:$ids, Model_Tensor:$dy,
    DefaultValuedAttr<I64Attr, "-1">:$padding, UnitAttr:$turned);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = Model_OperandsFormat;
}

// Included here so that the reference page lists these ops before updates.
include "dialects/Train/TrainExpertOps.td"

//===----------------------------------------------------------------------===//
// Update
//===----------------------------------------------------------------------===//

def Train_FlatOp : Train_Op<"flat",
    [DeclareOpInterfaceMethods<Model_MemoryOp, ["getOutsideMemory"]>]> {
  let summary = "a flat arena as rows of kFlatColumns elements";
  let description = [{
    The rows start at `row`, counted from the first parameter, or in bytes in
    the state arena. They may be narrower than kFlatColumns. With `parameter`
    they are rows of that parameter. With `statistics` they are the whole arena,
    starting with the statistics row. With several `pieces`, each rank of the
    group FSDP (with `of_run`: of all ranks) has its own range of rows. The
    ranges follow each other from `row` on, in rank order.
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
  let summary = "overwrites a flat arena from a row on";
  let description = "`row`, `pieces` and `of_run` are as in `train.flat`.";
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
  let summary = "all-gathers rows of a flat arena, in place";
  let description = [{
    Each rank of the group FSDP has computed one of N equal pieces of the rows
    from `row` on. (C1) the rows are a multiple of `pieces`.
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
  let summary = "norm of the mean gradient, and the factor for updates";
  let description = [{
    norm = |g| / count; scale = min(1, max_grad_norm / (norm + 1e-6)) / count
    (no limit if max_grad_norm is 0), NaN if the norm or the loss is not finite.
    Both are f32 [1]. `gradient` covers the unsharded parameters. It starts with
    the statistics row, which has the count and does not enter the norm.
    `lengths` are the norms of the sharded gradients, one per rank of the group
    FSDP.
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
  let summary = "the Euclidean norm of a vector, f32 [1]";
  let ownArguments = (ins Model_Tensor:$x);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
}

def Train_RoundOp : Train_Op<"round",
    [Pure, Model_MemoryOp, DeclareOpInterfaceMethods<Model_RowOp>]> {
  let summary = "rounds values to the type of the result";
  let ownArguments = (ins Model_FloatTensor:$x);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
}

include "dialects/Train/TrainUpdateOps.td"

#endif // QLORA_DIALECTS_TRAIN_TRAINOPS_TD
