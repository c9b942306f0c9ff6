// SPDX-License-Identifier: MIT

// Collectives, and ops that each of N ranks computes for its shard. Included by
// ModelOps.td, whose conventions and classes apply. The micro-batches of all
// ranks have the same shape, [B, T].
//
//   %x = model.embedding %ids, %w                 // w [V, H]
//
// becomes, with an fsdp shard of P rows on each rank,
//
//   %p   = model.weight_piece @w                  // [P, H]
//   %all = model.all_gather %ids                  // [N B, T]
//   %y   = model.embedding %all, %p {words = V}   // 0 if not in this shard
//   %x   = model.reduce_scatter %y                // [B, T, H]

#ifndef QLORA_DIALECTS_MODEL_MODELSHARDOPS_TD
#define QLORA_DIALECTS_MODEL_MODELSHARDOPS_TD

def Model_GatherWeightOp : Model_StagedOp<Model_Dialect, "gather_weight",
    [Pure, Model_MemoryOp,
     DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "the whole of a sharded or offloaded parameter";
  let description = [{
    All-gathers the pieces of the group's ranks into memory of the step; an
    `on_host` parameter is copied to the device first. (C1) the parameter has a
    `piece` or is `on_host`, and the result has its type, or with `rounded` that
    type in bf16, as in `model.weight`.
  }];
  let ownArguments = (ins FlatSymbolRefAttr:$parameter, UnitAttr:$rounded);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = "$parameter attr-dict `:` type($result)";
}

def Model_WeightPieceOp : Model_StagedOp<Model_Dialect, "weight_piece",
    [Pure, DeclareOpInterfaceMethods<Model_MemoryOp, ["getOutsideMemory"]>,
     DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "this rank's piece of a parameter, as rows";
  let description = [{
    (C1) the parameter has a `piece` of as many bytes as the result, whose type
    differs from the parameter's in the first dimension only.
  }];
  let ownArguments = (ins FlatSymbolRefAttr:$parameter);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = "$parameter attr-dict `:` type($result)";
}

/// A collective over rows [B, ...] of each rank.
class Model_Together<string mnemonic>
    : Model_StagedOp<Model_Dialect, mnemonic, [Pure, Model_MemoryOp]> {
  let ownArguments = (ins Model_Tensor:$x,
    DefaultValuedAttr<Model_RanksAttr, "::qlora::model::Ranks::FSDP">:$ranks);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Model_AllGatherOp : Model_Together<"all_gather"> {
  let summary = "all-gather: the rows of all ranks, in rank order";
  let description = [{
    (C1) the result has x's columns and element type, and a multiple of x's
    elements; its sequences may have another length.
  }];
}

def Model_ReduceScatterOp : Model_Together<"reduce_scatter"> {
  let summary = "reduce-scatter: this rank's rows of the sum over ranks";
  let description = [{
    (C1) x has the result's columns and element type, and a multiple of its
    elements; its sequences may have another length. (C2) the elements are f32,
    bf16 or f16.
  }];
}

def Model_AllToAllOp : Model_Together<"all_to_all"> {
  let summary = "all-to-all: block r of the result comes from rank r";
  let description = [{
    x consists of one block per rank; block r is sent to rank r. (C1) the result
    has as many elements as x, of its type, in any shape.
  }];
}

def Model_AllSumOp : Model_StagedOp<Model_Dialect, "all_sum",
    [Pure, SameOperandsAndResultType, Model_TokenwiseOp,
     DeclareOpInterfaceMethods<Model_MemoryOp, ["getMemoryTies"]>]> {
  let summary = "all-reduce: the sum over the ranks, on each rank";
  let description = [{
    The gradient of an all_sum is an all_sum too: every rank's summand gets the
    gradient of all ranks' uses. (C1) the elements are f32, bf16 or f16.
  }];
  let ownArguments = (ins Model_FloatTensor:$x,
    DefaultValuedAttr<Model_RanksAttr, "::qlora::model::Ranks::TP">:$ranks);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = "$x attr-dict `:` type($result)";
}

def Model_SwapBlocksOp : Model_Library<"swap_blocks"> {
  let summary = "transposes the blocks of a tensor";
  let description = [{
    x is seen as [first, second, n] and becomes [second, first, n], in any
    shape. (C1) first and second are positive, first * second divides the number
    of elements of x, and the result has as many elements, of x's type. (C2) a
    row of x consists of whole runs of n elements, or lies within one.
  }];
  let ownArguments = (ins Model_Tensor:$x, I64Attr:$first, I64Attr:$second);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Model_SendOp : Model_StagedOp<Model_Dialect, "send",
    [Model_MemoryOp,
     DeclareOpInterfaceMethods<Model_LossOp, ["getReadName"]>]> {
  let summary = "sends tensors to the pipeline stage `peer` places later";
  let description = [{
    A negative peer is an earlier stage. If the forward continues in another
    stage, this stage computes no losses or statistics. The op then returns
    zeros for them, one result for each of `names`. Gradients come back for the
    `wanted` tensors. (C1) there are as many names as results, and as many flags
    as tensors.
  }];
  let ownArguments = (ins Variadic<Model_Tensor>:$values, I64Attr:$peer,
    DefaultValuedAttr<StrArrayAttr, "{}">:$names,
    DenseBoolArrayAttr:$wanted);
  let results = (outs Variadic<Model_Tensor>:$zeros);
  let assemblyFormat =
      "operands `to` $peer attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// Returns whether any sent tensor gets a gradient back; ignores `result`.
    bool isWanted(unsigned result) {
      return ::llvm::is_contained(getWanted(), true);
    }
  }];
}

def Model_ReceiveOp : Model_StagedOp<Model_Dialect, "receive",
    [Model_MemoryOp]> {
  let summary = "receives tensors from the pipeline stage `peer` places later";
  let description = [{
    A negative peer is an earlier stage. The results are the tensors of its
    `model.send`, in order. Those `wanted` depend on parameters that another
    stage trains; their gradients are sent back. (C1) there are as many flags as
    tensors.
  }];
  let ownArguments = (ins I64Attr:$peer, DenseBoolArrayAttr:$wanted);
  let results = (outs Variadic<Model_Tensor>:$values);
  let assemblyFormat = "`from` $peer attr-dict `:` type($values)";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// Returns whether a result depends on a parameter that another stage
    /// trains.
    bool isWanted(unsigned result) { return getWanted()[result]; }
  }];
}

def Model_HeadPartOp : Model_Library<"head_part"> {
  let summary = "an LM head's result for one shard of the vocabulary";
  let description = [{
    hidden [N B, T, H] and targets [N B, T] of all ranks, and W [P, H], a piece
    of a head of `words` tokens. `states` f32 [N B, T, 4], or [N B, T, 5] with
    `label_smoothing`, and the optional `gradient` f32 [N B, T, H] are described
    in Kernels.def; head_merge turns them into a loss. (C1) W is as wide as
    hidden, and N * P is at least `words`. (C2) targets, states and gradient
    have hidden's rows. (C3) `label_smoothing` and `cap` exclude each other.
  }];
  let ownArguments = (ins Model_FloatTensor:$hidden, Model_WeightTensor:$weight,
    Model_Tensor:$targets, I64Attr:$words, I64Attr:$shards, F64Attr:$cap,
    DefaultValuedAttr<F64Attr, "0.0">:$label_smoothing);
  let results = (outs Model_FloatTensor:$states,
                      Optional<Model_FloatTensor>:$gradient);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

def Model_HeadMergeOp : Model_StagedOp<Model_Dialect, "head_merge",
    [Pure,
     DeclareOpInterfaceMethods<Model_MemoryOp, ["getMemoryTies"]>,
     DeclareOpInterfaceMethods<Model_LibraryOp>]> {
  let summary = "loss and gradient from the head_part results of all ranks";
  let description = [{
    states: the head_part states of N ranks, in rank order. targets [N B, T].
    loss, count and correct are this rank's, as in model.head_loss. With
    `gradient` and W [P, H] the op also returns `summand`, which overwrites
    gradient. The summands of all ranks add up to the gradient of the hidden
    states of all ranks. (C1) gradient, W and summand are all present or all
    absent, and gradient has the type of summand. (C2) states have N times the
    rows of targets, and correct has this rank's rows.
    (C3) `label_smoothing` and `cap` exclude each other.
  }];
  let ownArguments = (ins Model_FloatTensor:$states, Model_Tensor:$targets,
    Variadic<Model_Tensor>:$of_gradient, I64Attr:$words, I64Attr:$piece,
    I64Attr:$shards, F64Attr:$cap,
    DefaultValuedAttr<F64Attr, "0.0">:$label_smoothing,
    UnitAttr:$own_probability);
  let results = (outs Model_FloatTensor:$loss, Model_FloatTensor:$count,
    Model_Tensor:$correct, Optional<Model_FloatTensor>:$summand);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

#endif // QLORA_DIALECTS_MODEL_MODELSHARDOPS_TD
