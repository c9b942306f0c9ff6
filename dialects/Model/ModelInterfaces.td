// SPDX-License-Identifier: MIT

// The op interfaces that passes use instead of op names.

#ifndef QLORA_DIALECTS_MODEL_MODELINTERFACES_TD
#define QLORA_DIALECTS_MODEL_MODELINTERFACES_TD

include "mlir/IR/CommonAttrConstraints.td"
include "mlir/IR/OpBase.td"

def Model_Staged : OpInterface<"StagedOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    An op that can stand in a training step, and what it is there: the decoder
    `layer` that it belongs to, or whose gradient it is part of (none outside of
    the layers: -1), and its `phase`. `backward` is what reverse mode and the
    passes after it add to the forward; `recomputed` is the part of that which
    does a forward op again. `reference` is the forward of the model as it was
    before training: nothing is adapted there, and no gradient flows through.
    `exchange` is what ranks do with gradients that are complete, and is left out
    of all micro-batches of a step but the last. A forward op does not say so.

    Both are attributes of the op, so that clones have them; who makes an op for
    another one calls `copyStage` (Model.h).
  }];
  let methods = [
    InterfaceMethod<"-1 outside of the layers.", "int64_t", "getLayer">,
    InterfaceMethod<"", "void", "setLayer", (ins "int64_t":$layer)>,
    InterfaceMethod<"Which part of the step.", "::qlora::model::StepPhase",
                    "getPhase">,
    InterfaceMethod<"", "void", "setPhase",
                    (ins "::qlora::model::StepPhase":$phase)>,
  ];
}

// Optional attributes, with defaults for builders.
def Model_LayerAttr : Attr<And<[I64Attr.predicate, IntNonNegative.predicate]>,
                           "number of a decoder layer, not negative"> {
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

/// Linear in the first operand: if ranks hold partial sums of that operand,
/// they hold partial sums of the results too.
def Model_ReductionTransparentOp : NativeOpTrait<"ReductionTransparentOp"> {
  let cppNamespace = "::qlora::model";
}

/// Handles each token independently. RowOps, views and WeightedMatmuls do too.
def Model_TokenwiseOp : NativeOpTrait<"TokenwiseOp"> {
  let cppNamespace = "::qlora::model";
}

/// Results that belong to no single token or sequence are sums over tokens:
/// ranks with a shard of the tokens hold partial sums.
def Model_TokenReductionOp : NativeOpTrait<"TokenReductionOp"> {
  let cppNamespace = "::qlora::model";
}

/// The result's rows are no longer sorted by group: each belongs to one token.
/// If ranks hold some of the groups each, it is a partial sum.
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
    a row (`isScalarResult`).

    (R1) every operand has as many elements as its map reads, and every result
    as many as the rows have, or one for each of them; the first result is
    `full`.
  }];
  // Verified after the op's own constraints, because it needs the regions.
  let verifyWithRegions = 1;
  let verify = [{ return ::qlora::model::verifyRowOp($_op); }];
  let methods = [
    InterfaceMethod<"C: elements of a row.", "int64_t", "getRowColumns">,
    InterfaceMethod<"One map per operand.",
      "::llvm::SmallVector<::qlora::model::MapAttr>", "getRowMaps">,
    InterfaceMethod<[{Writes the arithmetic at the builder's position and
      returns one row, or one f32, per result.}],
      "::llvm::SmallVector<::mlir::Value>", "buildRow",
      (ins "::mlir::OpBuilder &":$builder, "::mlir::ValueRange":$arguments)>,
    InterfaceMethod<"True for a result that has one number a row.",
      "bool", "isScalarResult", (ins "unsigned":$index),
      [{}], [{ return false; }]>,
  ];
}

def Model_LibraryOp : OpInterface<"LibraryOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    An op that a library kernel computes. `getKernelCall` says which op of
    Kernels.def, and what each of its operands and constants is.
  }];
  let methods = [
    InterfaceMethod<"The call, complete but for row strides.",
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
    An op of weights alone whose result reverse mode takes for a constant,
    though trained ones are among them: torch's `detach`.
  }];
  let methods = [
    InterfaceMethod<"The trained parameter that starts at the result, or null.",
      "::mlir::FlatSymbolRefAttr", "getStartedAttr">,
  ];
}

def Model_AccumulatingOp : OpInterface<"AccumulatingOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    A library op with one result that can add to what is there already
    instead of overwriting it: it has an optional operand `init`.
  }];
  let methods = [
    InterfaceMethod<"The tensor added to, or null.", "::mlir::Value",
      "getAccumulator", (ins), [{}], [{ return $_op.getInit(); }]>,
    InterfaceMethod<"Its use by the op, or null.", "::mlir::OpOperand *",
      "getAccumulatorUse", (ins), [{}],
      [{ return $_op.getInit() ? &$_op.getInitMutable()[0] : nullptr; }]>,
    InterfaceMethod<"Adds to `init` from now on, or to nothing where it is null.",
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
    LoRA, quantisation, the joining of siblings and the planning of decoding
    ask this interface and no op, so that another op of this kind is one record
    with a kernel call and a gradient.

    What it leaves open is the op's: the output head uses its product up for a
    loss, so that it has no value (`getProduct`), and reads numbers only
    (`takesStoredWeight`). Of experts, rows are grouped by expert and W holds a
    matrix for each group (`getGroups`); who cuts, stacks or adapts W asks for
    that.
  }];
  let methods = [
    InterfaceMethod<"x, [..., in].", "::mlir::OpOperand &", "getXMutable">,
    InterfaceMethod<"W, of two dimensions.", "::mlir::OpOperand &",
      "getWeightMutable">,
    InterfaceMethod<"y, [..., out], or null where it is no value.",
      "::mlir::Value", "getProduct">,
    InterfaceMethod<"Which dimension of W is which.",
      "::qlora::model::WeightLayout", "getLayout",
      (ins), [{}], [{ return ::qlora::model::WeightLayout::OutIn; }]>,
    InterfaceMethod<"W has been turned; asked of ops that have both layouts.",
      "void", "setLayout", (ins "::qlora::model::WeightLayout":$layout),
      [{}], [{ llvm_unreachable("an op of one layout"); }]>,
    InterfaceMethod<"Matrices in W, each for a group of x's rows; 1 for a W "
                    "that is one.", "int64_t", "getGroups",
      (ins), [{}], [{ return 1; }]>,
    InterfaceMethod<"i32 [getGroups() + 1]: where each group's rows begin, or "
                    "null for a W that is one.", "::mlir::Value",
      "getGroupOffsets", (ins), [{}], [{ return nullptr; }]>,
    InterfaceMethod<[{The dimension of W that the groups share: they follow
      each other in the first, and take turns in the second.}],
      "unsigned", "getGroupDimension", (ins), [{}], [{ return 0; }]>,
    InterfaceMethod<[{x has the rows of so many ranks from now on, of which as
      many as one has are expected to be in groups: what it costs follows.}],
      "void", "expectRowsOf", (ins "int64_t":$ranks), [{}],
      [{ static_cast<void>(ranks); }]>,
    InterfaceMethod<"What is added to, or null.", "::mlir::Value", "getInit",
      (ins), [{}], [{ return nullptr; }]>,
    InterfaceMethod<"A factor of the product, but not of init.",
      "::llvm::APFloat", "getScale",
      (ins), [{}], [{ return ::llvm::APFloat(1.0); }]>,
    InterfaceMethod<[{The path of the Hugging Face module that W belongs to;
      nullopt for products that no module stands for (LoRA's own, and those of
      the backward).}],
      "::std::optional<::llvm::StringRef>", "getModule",
      (ins), [{}], [{ return ::std::nullopt; }]>,
    InterfaceMethod<[{True where W may be stored in a type that has to be
      decoded first (4 bits, or 16 beside an f32 x): by the op's kernel, or
      before it.}],
      "bool", "takesStoredWeight", (ins), [{}], [{ return true; }]>,
    InterfaceMethod<[{Where x is rounded to 8 bits row by row before it is
      multiplied with a W of whole numbers: from which magnitude on its
      columns are left out of that, 0 for never (LLM.int8). nullopt: x is
      multiplied as it is.}],
      "::std::optional<double>", "getInt8Threshold",
      (ins), [{}], [{ return ::std::nullopt; }]>,
    InterfaceMethod<"Rounds x from now on, or does not; false where the op cannot.",
      "bool", "roundInput", (ins "::std::optional<double>":$threshold),
      [{}], [{ return !threshold; }]>,
    InterfaceMethod<[{From now on the outputs whose numbers `words` has, f32
      [k], are not products with W but `columns`, [..., k]; false where the op
      cannot.}],
      "bool", "replaceOutputs",
      (ins "::mlir::Value":$columns, "::mlir::Value":$words),
      [{}], [{ return false; }]>,
  ];
  let extraClassDeclaration = [{
    ::mlir::Value getX() { return getXMutable().get(); }
    ::mlir::Value getWeight() { return getWeightMutable().get(); }
    /// The dimension of W that gives y's width, and the one that gives x's.
    unsigned getOutDimension() {
      return getLayout() == ::qlora::model::WeightLayout::OutIn ? 0 : 1;
    }
    unsigned getInDimension() { return 1 - getOutDimension(); }
    /// Columns of y and of x: the dimensions above, for one group.
    int64_t getOutWidth() { return widthOf(getOutDimension()); }
    int64_t getInWidth() { return widthOf(getInDimension()); }
    int64_t widthOf(unsigned dimension) {
      int64_t shared = dimension == getGroupDimension() ? getGroups() : 1;
      return getWeightType().getDimSize(dimension) / shared;
    }
    ::mlir::RankedTensorType getWeightType() {
      return ::llvm::cast<::mlir::RankedTensorType>(getWeight().getType());
    }
    /// The type that the kernel decodes W to, which is x's. Null if the kernel
    /// reads W undecoded: in x's type, an f32 adapter, or integers.
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
    An op that finds an order of rows, sorted by groups, for `WeightedMatmul`s
    of several groups. Ranks can have some of the groups each.
  }];
  let methods = [
    InterfaceMethod<"i32 [groups + 1]: where each group's rows begin.",
      "::mlir::Value", "getGroupOffsets">,
    InterfaceMethod<[{Makes ops, at the builder's position, that sort rows of all
      ranks, `rows`, but leave out those of groups that other ranks of the group
      EP have: these stay empty, and their rows are nowhere. Returns what stands
      for the results, for as many rows, and behind them the offsets of this
      rank's groups alone, i32 [groups / ranks + 1].}],
      "::llvm::SmallVector<::mlir::Value>", "shareGroups",
      (ins "::mlir::OpBuilder &":$builder, "::mlir::Value":$rows,
           "int64_t":$ranks)>,
  ];
}

/// Methods of LM heads: their product is never materialized as a whole, and
/// their weight is a table that is not 4-bit.
defvar Model_HeadMethods = [{
    ::mlir::OpOperand &getXMutable() { return getHiddenMutable(); }
    ::mlir::Value getProduct() { return nullptr; }
    bool takesStoredWeight() { return false; }
    ::mlir::OpOperand &getTableMutable() { return getWeightMutable(); }
    bool canDivideTable();
    ::llvm::SmallVector<::mlir::Value> divideTable(
        ::mlir::OpBuilder &builder, ::mlir::Value piece, int64_t shards,
        ::qlora::model::Ranks ranks);
}];

def Model_TableOp : OpInterface<"TableOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    An op over a table [V, H] of words, or of positions, that ranks can share:
    each holds rows of the table, and does its part for the tokens of all.
  }];
  let methods = [
    InterfaceMethod<"The table.", "::mlir::OpOperand &", "getTableMutable">,
    InterfaceMethod<"Whether this op can: some forms cannot.", "bool",
      "canDivideTable">,
    InterfaceMethod<[{Makes ops for `piece`, the rows of one of `shards` ranks,
      at the builder's position, and returns what stands for the results. The
      group FSDP has other rows of tokens on each rank, TP the same.}],
      "::llvm::SmallVector<::mlir::Value>", "divideTable",
      (ins "::mlir::OpBuilder &":$builder, "::mlir::Value":$piece,
           "int64_t":$shards, "::qlora::model::Ranks":$ranks)>,
  ];
}

def Model_ColumnwiseOp : OpInterface<"ColumnwiseOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    An op that does for a part of the columns what it does for all of them, so
    that ranks can have a part each. Of row ops without reductions that is known.
  }];
  let methods = [
    InterfaceMethod<"Whose columns are divided with those of the first result.",
      "::llvm::SmallVector<::mlir::OpOperand *>", "getColumnOperands">,
    InterfaceMethod<[{Runs of columns that stay together, of which each of these
      operands has as many.}], "int64_t", "getColumnRuns">,
    InterfaceMethod<[{Makes runs of which each of `ranks` has as many, with copies
      of what several of them read and of what fills them up; false where the op
      cannot.}], "bool", "assignRuns",
      (ins "::mlir::OpBuilder &":$builder, "int64_t":$ranks), [{}],
      [{ return false; }]>,
    InterfaceMethod<"What the runs are, for people: 8 heads of queries and 4 of "
                    "keys.", "std::string", "getRunsInWords">,
    InterfaceMethod<[{The operands have a part of the runs now, of `ranks` equal
      ones: attributes and the types of results follow.}],
      "void", "divideColumns", (ins "int64_t":$ranks)>,
  ];
}

def Model_LossOp : OpInterface<"LossOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    An op with results that the runtime reads, which a forward function returns:
    a loss, what it is divided by, and what else is said of them. Reverse mode
    starts at every op that a function returns results of: a `loss_sum`, and
    `router_loss`, which is added to it.
  }];
  let methods = [
    InterfaceMethod<"What a result is read as (train.result); empty for one that "
                    "is not.", "::llvm::StringRef", "getReadName",
                    (ins "unsigned":$result)>,
    InterfaceMethod<[{Where each of so many ranks finds it of all tokens, those
      add up to it from now on; false where the op cannot.}], "bool",
                    "divideLoss", (ins "int64_t":$ranks), [{}],
                    [{ return false; }]>,
  ];
}

def Model_MemoryOp : OpInterface<"MemoryOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    What the memory of an op's operands and results has to do with each other,
    and with memory outside of the step. These are facts of the op;
    compiler/Graph/StepMemory.h decides with them where each value is.
  }];
  let methods = [
    InterfaceMethod<[{Results that can be written where an operand is, results
      in order and for each the operands in order. By default a sum over
      `init`, and what a row op can write over (tiesOf).}],
      "::llvm::SmallVector<::qlora::model::MemoryTie>", "getMemoryTies", (ins),
      [{}], [{ return ::qlora::model::tiesOf($_op.getOperation()); }]>,
    InterfaceMethod<"Operands or results that are ranges of another, in order.",
      "::llvm::SmallVector<::qlora::model::MemoryPart>", "getMemoryParts",
      (ins), [{}], [{ return {}; }]>,
    InterfaceMethod<"Memory outside of the step that the op writes.",
      "::llvm::SmallVector<::qlora::model::MemoryStore>", "getMemoryStores",
      (ins), [{}], [{ return {}; }]>,
    InterfaceMethod<[{The memory outside of the step that its only result is;
      nullopt where the results are the step's own.}],
      "::std::optional<::qlora::model::OutsideMemory>", "getOutsideMemory",
      (ins), [{}], [{ return ::std::nullopt; }]>,
  ];
}

#endif // QLORA_DIALECTS_MODEL_MODELINTERFACES_TD
