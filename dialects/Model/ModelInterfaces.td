// SPDX-License-Identifier: MIT

// The op interfaces that passes use instead of op names.

#ifndef QLORA_DIALECTS_MODEL_MODELINTERFACES_TD
#define QLORA_DIALECTS_MODEL_MODELINTERFACES_TD

include "mlir/IR/CommonAttrConstraints.td"
include "mlir/IR/OpBase.td"

/// Format of ops that print all operands in order, then attributes and types.
defvar Model_OperandsFormat =
    "operands attr-dict `:` functional-type(operands, results)";

def Model_Staged : OpInterface<"StagedOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    An op of a training step. `layer` is the decoder layer of the op, or of the
    forward op whose gradient it computes; -1 outside of the layers. `phase`:
    * `forward` (not printed): the model's forward;
    * `backward`: ops that reverse mode and later passes add;
    * `recomputed`: ops of the backward that repeat a forward op;
    * `reference`: the forward of the model before training, without adapters
      and gradients;
    * `exchange`: collectives on complete gradients, which run only in the last
      micro-batch of a step.

    Layer and phase are attributes, so clones keep them. Code that creates an op
    on behalf of another op calls `copyStage` (Model.h).
  }];
  let methods = [
    InterfaceMethod<"The decoder layer, or -1.", "int64_t", "getLayer">,
    InterfaceMethod<"", "void", "setLayer", (ins "int64_t":$layer)>,
    InterfaceMethod<"The phase of the step.", "::qlora::model::StepPhase",
                    "getPhase">,
    InterfaceMethod<"", "void", "setPhase",
                    (ins "::qlora::model::StepPhase":$phase)>,
  ];
}

// Optional attributes, with defaults for builders.
def Model_LayerAttr : Attr<And<[I64Attr.predicate, IntNonNegative.predicate]>,
                           "index of a decoder layer, not negative"> {
  let isOptional = 1;
  let storageType = "::mlir::IntegerAttr";
  let returnType = "int64_t";
  let convertFromStorage = "($_self ? $_self.getInt() : -1)";
  let constBuilderCall =
      "($0 < 0 ? ::mlir::IntegerAttr() : $_builder.getI64IntegerAttr($0))";
  let defaultValue = "-1";
}
def Model_PhaseAttr
    : Attr<CPred<"::llvm::isa<::qlora::model::StepPhaseAttr>($_self)">,
           "phase of a training step"> {
  let isOptional = 1;
  let storageType = "::qlora::model::StepPhaseAttr";
  let returnType = "::qlora::model::StepPhase";
  let convertFromStorage =
      "($_self ? $_self.getValue() : ::qlora::model::StepPhase::Forward)";
  let constBuilderCall = [{($0 == ::qlora::model::StepPhase::Forward
      ? ::qlora::model::StepPhaseAttr()
      : ::qlora::model::StepPhaseAttr::get($_builder.getContext(), $0))}];
  let defaultValue = "::qlora::model::StepPhase::Forward";
}

/// Trait of ops that are linear in the first operand: if ranks hold partial
/// sums of that operand, they hold partial sums of the results too.
def Model_ReductionTransparentOp : NativeOpTrait<"ReductionTransparentOp"> {
  let cppNamespace = "::qlora::model";
}

/// Trait of ops that handle each token independently. RowOps, views and
/// WeightedMatmuls do so without this trait.
def Model_TokenwiseOp : NativeOpTrait<"TokenwiseOp"> {
  let cppNamespace = "::qlora::model";
}

/// Trait of ops that sum over tokens. For results that belong to no single
/// token or sequence, ranks with a shard of the tokens hold partial sums.
def Model_TokenReductionOp : NativeOpTrait<"TokenReductionOp"> {
  let cppNamespace = "::qlora::model";
}

/// Trait of ops that compute rows in token order from rows sorted by group. If
/// each rank holds some of the groups, the result is a partial sum.
def Model_UngroupOp : NativeOpTrait<"UngroupOp"> {
  let cppNamespace = "::qlora::model";
}

/// Model_PartAttr for ops of the model and train dialects; null if absent.
def Model_UsedPartAttr
    : Attr<CPred<"::llvm::isa<::qlora::model::PartAttr>($_self)">,
           "part of a trained weight"> {
  let isOptional = 1;
  let storageType = "::qlora::model::PartAttr";
  let returnType = "::qlora::model::PartAttr";
  let convertFromStorage = "$_self";
  let constBuilderCall = "$0";
  let defaultValue = "::qlora::model::PartAttr()";
}

/// A StagedOp of the model or train dialect. Records set `ownArguments` instead
/// of `arguments`.
class Model_StagedOp<Dialect dialect, string mnemonic, list<Trait> traits = []>
    : Op<dialect, mnemonic, [Model_Staged] # traits> {
  dag ownArguments = (ins);
  let arguments = !con(ownArguments,
                       (ins Model_LayerAttr:$layer, Model_PhaseAttr:$phase));
}

def Model_RowOp : OpInterface<"RowOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    An op whose arithmetic is a region over one row. The region's arguments
    are the operands in order: `tensor<Cxf32>` for `full`, `column` and
    `group`, `f32` for `scalar` and `global`. A result is `full`, or one number
    per row (`isScalarResult`).

    (R1) every operand has as many elements as its map reads. Every result has
    as many elements as the rows, or one per row; the first result is `full`.
  }];
  // verifyRowOp reads regions, so it runs after the op's own verifier.
  let verifyWithRegions = 1;
  let verify = [{ return ::qlora::model::verifyRowOp($_op); }];
  let methods = [
    InterfaceMethod<[{C: elements of a row. Default: columns of the first
      result.}], "int64_t", "getRowColumns", (ins), [{}],
      [{ return ::qlora::model::columnsOf($_op->getResult(0)); }]>,
    InterfaceMethod<"One map per operand. Default: all `full`.",
      "::llvm::SmallVector<::qlora::model::MapAttr>", "getRowMaps", (ins),
      [{}], [{ return ::qlora::model::fullMaps($_op.getOperation()); }]>,
    InterfaceMethod<[{Writes the arithmetic at the builder's position and
      returns one row, or one f32, per result.}],
      "::llvm::SmallVector<::mlir::Value>", "buildRow",
      (ins "::mlir::OpBuilder &":$builder, "::mlir::ValueRange":$arguments)>,
    InterfaceMethod<"True for a result that has one number per row.",
      "bool", "isScalarResult", (ins "unsigned":$index),
      [{}], [{ return false; }]>,
  ];
}

def Model_LibraryOp : OpInterface<"LibraryOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    An op that a library kernel computes. `getKernelCall` names the op of
    Kernels.def and its operands and constants.
  }];
  let methods = [
    InterfaceMethod<"The call, for dense operands.",
      "::qlora::model::KernelCall", "getKernelCall">,
    InterfaceMethod<"True for a result that stays f32 whatever the compute "
                    "type.",
      "bool", "isFullPrecisionResult", (ins "unsigned":$index),
      [{}], [{ return false; }]>,
  ];
}

def Model_DetachedOp : OpInterface<"DetachedOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    An op of weights only. Reverse mode treats its result as a constant, even if
    some of the weights are trained, as torch's `detach` does.
  }];
  let methods = [
    InterfaceMethod<"The parameter initialized with the result, or null.",
      "::mlir::FlatSymbolRefAttr", "getStartedAttr">,
  ];
}

def Model_AccumulatingOp : OpInterface<"AccumulatingOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    A library op whose one result can add to an existing tensor, the optional
    operand `init`, instead of overwriting it.
  }];
  let methods = [
    InterfaceMethod<"The tensor that the op adds to, or null.", "::mlir::Value",
      "getAccumulator", (ins), [{}], [{ return $_op.getInit(); }]>,
    InterfaceMethod<"The operand `init`, or null.", "::mlir::OpOperand *",
      "getAccumulatorUse", (ins), [{}],
      [{ return $_op.getInit() ? &$_op.getInitMutable()[0] : nullptr; }]>,
    InterfaceMethod<"Makes the op add to `init`; null: overwrite.",
      "void", "setAccumulator", (ins "::mlir::Value":$init), [{}], [{
        $_op.getInitMutable().assign(init ? ::mlir::ValueRange(init)
                                          : ::mlir::ValueRange());
      }]>,
  ];
}

def Model_WeightedMatmul : OpInterface<"WeightedMatmul"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    y = init + scale * x . W, where W is a weight of the model: [out, in], as
    torch's Linear has it (x . W^T), or [in, out] (x . W), as Conv1D has it.
    LoRA, quantization, the joining of siblings and the planning of decoding use
    only this interface. So a new op of this kind needs a record, a kernel call
    and a gradient.

    Ops differ in these points. The LM head consumes its matmul in a loss, so y
    is not a value (`getProduct`), and it cannot decode W (`takesStoredWeight`).
    For experts, rows are grouped by expert and W holds one matrix per group
    (`getGroups`); passes that split, stack or adapt W must handle groups.
  }];
  let methods = [
    InterfaceMethod<"x, [..., in].", "::mlir::OpOperand &", "getXMutable">,
    InterfaceMethod<"W, of two dimensions.", "::mlir::OpOperand &",
      "getWeightMutable">,
    InterfaceMethod<"y, [..., out]; null if it is not a value.",
      "::mlir::Value", "getProduct">,
    InterfaceMethod<"Order of W's dimensions.",
      "::qlora::model::WeightLayout", "getLayout",
      (ins), [{}], [{ return ::qlora::model::WeightLayout::OutIn; }]>,
    InterfaceMethod<"Sets the layout, for ops that support both.",
      "void", "setLayout", (ins "::qlora::model::WeightLayout":$layout),
      [{}], [{ llvm_unreachable("an op of one layout"); }]>,
    InterfaceMethod<"Number of matrices in W, one per group of x's rows.",
      "int64_t", "getGroups",
      (ins), [{}], [{ return 1; }]>,
    InterfaceMethod<"i32 [getGroups() + 1]: first row of each group; null if W "
                    "is a single matrix.", "::mlir::Value",
      "getGroupOffsets", (ins), [{}], [{ return nullptr; }]>,
    InterfaceMethod<[{The dimension of W that contains the groups: stacked in
      dimension 0, interleaved in dimension 1.}],
      "unsigned", "getGroupDimension", (ins), [{}], [{ return 0; }]>,
    InterfaceMethod<[{Records, for cost estimates, that x now has the rows of
      `ranks` ranks. About 1 / `ranks` of them are in groups of this rank.}],
      "void", "noteRowsOfRanks", (ins "int64_t":$ranks), [{}],
      [{ static_cast<void>(ranks); }]>,
    InterfaceMethod<"The operand `init`, or null.", "::mlir::Value", "getInit",
      (ins), [{}], [{ return nullptr; }]>,
    InterfaceMethod<"Factor of x . W; init is not scaled.",
      "::llvm::APFloat", "getScale",
      (ins), [{}], [{ return ::llvm::APFloat(1.0); }]>,
    InterfaceMethod<[{The path of the Hugging Face module that W belongs to;
      nullopt for matmuls without a module (LoRA's, and the backward's).}],
      "::std::optional<::llvm::StringRef>", "getModule",
      (ins), [{}], [{ return ::std::nullopt; }]>,
    InterfaceMethod<[{True if W may have a type that must be decoded (quantized,
      or 16-bit with an f32 x), by the op's kernel or before it.}],
      "bool", "takesStoredWeight", (ins), [{}], [{ return true; }]>,
    InterfaceMethod<[{nullopt: x is not rounded. Otherwise each row of x is
      rounded to 8 bits and multiplied with an integer W (LLM.int8); columns
      with at least this magnitude are not rounded (0: all are).}],
      "::std::optional<double>", "getInt8Threshold",
      (ins), [{}], [{ return ::std::nullopt; }]>,
    InterfaceMethod<"Sets getInt8Threshold(); returns false if unsupported.",
      "bool", "roundInput", (ins "::std::optional<double>":$threshold),
      [{}], [{ return !threshold; }]>,
    InterfaceMethod<[{Replaces the outputs with the indices `words`, f32 [k], by
      `columns`, [..., k]; returns false if unsupported.}],
      "bool", "replaceOutputs",
      (ins "::mlir::Value":$columns, "::mlir::Value":$words),
      [{}], [{ return false; }]>,
  ];
  let extraClassDeclaration = [{
    ::mlir::Value getX() { return getXMutable().get(); }
    ::mlir::Value getWeight() { return getWeightMutable().get(); }
    /// Indices of W's dimensions: `out` is as wide as y, `in` as wide as x.
    unsigned getOutDimension() {
      return getLayout() == ::qlora::model::WeightLayout::OutIn ? 0 : 1;
    }
    unsigned getInDimension() { return 1 - getOutDimension(); }
    /// Columns of y and of x: the sizes of W's dimensions, for one group.
    int64_t getOutWidth() { return widthOf(getOutDimension()); }
    int64_t getInWidth() { return widthOf(getInDimension()); }
    int64_t widthOf(unsigned dimension) {
      int64_t shared = dimension == getGroupDimension() ? getGroups() : 1;
      return getWeightType().getDimSize(dimension) / shared;
    }
    ::mlir::RankedTensorType getWeightType() {
      return ::llvm::cast<::mlir::RankedTensorType>(getWeight().getType());
    }
    /// Returns x's element type if the kernel decodes W to it. Returns null if
    /// the kernel reads W as stored: in x's type, in f32, or as integers.
    ::mlir::Type getDecodedType();
    /// Clones the op with another weight, result type `product` and no init;
    /// discardable attributes are kept.
    ::qlora::model::WeightedMatmul cloneWith(::mlir::OpBuilder &builder,
                                              ::mlir::Value weight,
                                              ::mlir::Type product);
  }];
}

def Model_GroupingOp : OpInterface<"GroupingOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    An op that sorts rows by group, for `WeightedMatmul`s with several groups.
    The groups can be sharded over ranks.
  }];
  let methods = [
    InterfaceMethod<"i32 [groups + 1]: first row of each group.",
      "::mlir::Value", "getGroupOffsets">,
    InterfaceMethod<[{Makes ops that sort `rows`, the rows of all ranks of the
      group EP. Groups of other ranks become empty; their rows are dropped.
      Returns replacements of the results, then the offsets of this rank's
      groups, i32 [groups / ranks + 1].}],
      "::llvm::SmallVector<::mlir::Value>", "shardGroups",
      (ins "::mlir::OpBuilder &":$builder, "::mlir::Value":$rows,
           "int64_t":$ranks)>,
  ];
}

/// Methods of LM heads. Their logits are not a result of the op, and their
/// weight is a table that is never quantized.
defvar Model_HeadMethods = [{
    ::mlir::OpOperand &getXMutable() { return getHiddenMutable(); }
    ::mlir::Value getProduct() { return nullptr; }
    bool takesStoredWeight() { return false; }
    ::mlir::OpOperand &getTableMutable() { return getWeightMutable(); }
    bool canShardTable();
    ::llvm::SmallVector<::mlir::Value> shardTable(
        ::mlir::OpBuilder &builder, ::mlir::Value piece, int64_t shards,
        ::qlora::model::Ranks ranks);
}];

def Model_TableOp : OpInterface<"TableOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    An op over a table [V, H] of tokens, or of positions, that can be sharded:
    each rank holds rows of the table and computes with them for all tokens.
  }];
  let methods = [
    InterfaceMethod<"The table.", "::mlir::OpOperand &", "getTableMutable">,
    InterfaceMethod<"False for forms that cannot be sharded.", "bool",
      "canShardTable">,
    InterfaceMethod<[{Makes ops for `piece`, the rows of one of `shards` ranks.
      Returns replacements of the results. `haveSameRows(ranks)` says whether
      the ranks have the same tokens.}],
      "::llvm::SmallVector<::mlir::Value>", "shardTable",
      (ins "::mlir::OpBuilder &":$builder, "::mlir::Value":$piece,
           "int64_t":$shards, "::qlora::model::Ranks":$ranks)>,
  ];
}

def Model_ColumnwiseOp : OpInterface<"ColumnwiseOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    An op that computes a range of the columns exactly as it computes all of
    them, so that ranks can shard the columns. Row ops without reductions need
    not implement it.
  }];
  let methods = [
    InterfaceMethod<"Operands sharded by columns like the first result.",
      "::llvm::SmallVector<::mlir::OpOperand *>", "getColumnOperands">,
    InterfaceMethod<[{Number of column runs that cannot be split, such as heads;
      equal for all column operands.}], "int64_t", "getColumnRuns">,
    InterfaceMethod<[{Makes the number of runs divisible by `ranks`, with copies
      of shared runs and with padding; returns false if unsupported.}],
      "bool", "assignRuns",
      (ins "::mlir::OpBuilder &":$builder, "int64_t":$ranks), [{}],
      [{ return false; }]>,
    InterfaceMethod<"Text for messages: '8 query heads and 4 key-value heads'.",
      "std::string", "describeRuns">,
    InterfaceMethod<[{Updates attributes and result types after operands became
      one of `ranks` equal shards.}],
      "void", "shardColumns", (ins "int64_t":$ranks)>,
  ];
}

def Model_LossOp : OpInterface<"LossOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    An op whose results a forward function returns for the runtime: a loss, its
    divisor and statistics. Reverse mode starts at every such op: at the
    `loss_sum`, and at the `router_loss`, which is added to it.
  }];
  let methods = [
    InterfaceMethod<"Name of a result in train.result; empty: not read.",
      "::llvm::StringRef", "getReadName", (ins "unsigned":$result)>,
    InterfaceMethod<[{Divides the loss by `ranks`, because each rank computes it
      for all tokens and losses are summed over ranks; returns false if
      unsupported.}],
      "bool", "shardLoss", (ins "int64_t":$ranks), [{}],
      [{ return false; }]>,
  ];
}

def Model_MemoryOp : OpInterface<"MemoryOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    Describes which operands and results of an op may share memory with each
    other or with memory outside of the step. From this,
    compiler/Memory/StepMemory.h decides the location of each value.
  }];
  let methods = [
    InterfaceMethod<[{Results that can be written in place of an operand, by
      result, then by operand. Default: tiesOf.}],
      "::llvm::SmallVector<::qlora::model::MemoryTie>", "getMemoryTies", (ins),
      [{}], [{ return ::qlora::model::tiesOf($_op.getOperation()); }]>,
    InterfaceMethod<"Operands or results that are ranges of another, in order.",
      "::llvm::SmallVector<::qlora::model::MemoryRange>", "getMemoryRanges",
      (ins), [{}], [{ return {}; }]>,
    InterfaceMethod<"Memory outside of the step that the op writes.",
      "::llvm::SmallVector<::qlora::model::MemoryStore>", "getMemoryStores",
      (ins), [{}], [{ return {}; }]>,
    InterfaceMethod<[{The memory outside of the step that the op's only result
      is in; nullopt if the results are in memory of the step.}],
      "::std::optional<::qlora::model::OutsideMemory>", "getOutsideMemory",
      (ins), [{}], [{ return ::std::nullopt; }]>,
  ];
}

#endif // QLORA_DIALECTS_MODEL_MODELINTERFACES_TD
