// SPDX-License-Identifier: MIT

// Ops of which each of the N ranks of the group FSDP computes a shard. Included
// by ModelOps.td, whose conventions and classes apply. R is the number of rows
// of one rank's micro-batch, B T, which is equal on all ranks.
//
//   %x = model.embedding %ids, %w                 // w [V, H]
//
// becomes, with an fsdp shard of P rows on each rank,
//
//   %p   = model.weight_piece @w                  // [P, H]
//   %all = model.all_gather %ids                  // [N B, T]
//   %y   = model.embedding %all, %p {words = V}   // 0 if another has the row
//   %x   = model.reduce_scatter %y                // [B, T, H]

#ifndef QLORA_DIALECTS_MODEL_MODELSHARDOPS_TD
#define QLORA_DIALECTS_MODEL_MODELSHARDOPS_TD

def Model_GatherWeightOp : Model_StagedOp<Model_Dialect, "gather_weight",
    [Pure, Model_MemoryOp,
     DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "the whole of a parameter that lies elsewhere";
  let description = [{
    In memory of the step: what each rank holds of it, one behind the other, which
    all of them do together; of one `on_host` it is copied first. (C1) the parameter
    has a `piece` or is `on_host`, and the result its type, or with `rounded` that
    in bf16, as `model.weight` has it.
  }];
  let ownArguments = (ins FlatSymbolRefAttr:$parameter, UnitAttr:$rounded);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = "$parameter attr-dict `:` type($result)";
}

def Model_WeightPieceOp : Model_StagedOp<Model_Dialect, "weight_piece",
    [Pure, DeclareOpInterfaceMethods<Model_MemoryOp, ["getOutsideMemory"]>,
     DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "what this rank holds of a parameter, as rows";
  let description = [{
    (C1) the parameter has a `piece` of as many bytes as the result, which differs
    from its type in the first dimension only.
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
  let summary = "the rows of all ranks, in the order of ranks";
  let description = [{
    (C1) the result has a multiple of x's rows, in lines of any length, and all
    else is the same.
  }];
}

def Model_ReduceScatterOp : Model_Together<"reduce_scatter"> {
  let summary = "the sum over the ranks of this rank's rows";
  let description = [{
    (C1) x has a multiple of the result's rows, in lines of any length, and all
    else is the same. (C2) the elements are f32, bf16 or f16.
  }];
}

def Model_AllToAllOp : Model_Together<"all_to_all"> {
  let summary = "block r is what rank r has for this one, for each rank r";
  let description = [{
    x is as many blocks as there are ranks, one behind the other, of which rank r
    gets number r. (C1) the result has as many elements as x, of its type, in
    any shape.
  }];
}

def Model_AllSumOp : Model_StagedOp<Model_Dialect, "all_sum",
    [Pure, SameOperandsAndResultType, Model_TokenwiseOp,
     DeclareOpInterfaceMethods<Model_MemoryOp, ["getMemoryTies"]>]> {
  let summary = "the sum over the ranks, on all of them";
  let description = [{
    What is made of it flows back to each rank's summand: the gradient of an
    all_sum is one too. (C1) the elements are f32, bf16 or f16.
  }];
  let ownArguments = (ins Model_FloatTensor:$x,
    DefaultValuedAttr<Model_RanksAttr, "::qlora::model::Ranks::TP">:$ranks);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = "$x attr-dict `:` type($result)";
}

def Model_SwapBlocksOp : Model_Library<"swap_blocks"> {
  let summary = "blocks of a tensor in another order";
  let description = [{
    x is seen as [first, second, n] and becomes [second, first, n], in any shape.
    (C1) first and second are positive, their product divides the elements of x,
    and the result has as many, of its type. (C2) a row of x has whole runs of n,
    or is a part of one.
  }];
  let ownArguments = (ins Model_Tensor:$x, I64Attr:$first, I64Attr:$second);
  let results = (outs Model_Tensor:$result);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Model_SendOp : Model_StagedOp<Model_Dialect, "send",
    [Model_MemoryOp, DeclareOpInterfaceMethods<Model_LossOp, ["getReadName"]>]> {
  let summary = "tensors go to the stage `peer` places on in the pipeline";
  let description = [{
    Back where peer is negative. Of a forward that goes on in another stage the
    results stand for what that one reads at its end under these `names`, and are
    zero. Gradients come back of the `wanted` ones. (C1) as many names as
    results, and as many flags as tensors.
  }];
  let ownArguments = (ins Variadic<Model_Tensor>:$values, I64Attr:$peer,
    DefaultValuedAttr<StrArrayAttr, "{}">:$names,
    DenseBoolArrayAttr:$wanted);
  let results = (outs Variadic<Model_Tensor>:$zeros);
  let assemblyFormat =
      "operands `to` $peer attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// Whether gradients come back: for all results, if any tensor is wanted.
    bool isWanted(unsigned result) {
      return ::llvm::is_contained(getWanted(), true);
    }
  }];
}

def Model_ReceiveOp : Model_StagedOp<Model_Dialect, "receive",
    [Model_MemoryOp]> {
  let summary = "what the stage `peer` places on in the pipeline sends";
  let description = [{
    In the order of its `model.send`. What is trained there flows into the
    `wanted` ones, whose gradients are sent back. (C1) as many flags as tensors.
  }];
  let ownArguments = (ins I64Attr:$peer, DenseBoolArrayAttr:$wanted);
  let results = (outs Variadic<Model_Tensor>:$values);
  let assemblyFormat = "`from` $peer attr-dict `:` type($values)";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// Whether the result depends on a parameter that another stage trains.
    bool isWanted(unsigned result) { return getWanted()[result]; }
  }];
}

def Model_HeadPartOp : Model_Library<"head_part"> {
  let summary = "what a piece of the output head finds for the rows of all ranks";
  let description = [{
    hidden [N B, T, H], W [P, H] of `words` in all, targets [N B, T]. `states` f32
    [N B, T, 4] and `gradient`, if it is there, f32 [N B, T, H] are as Kernels.def
    has them; head_merge makes a loss of them. (C1) W is as wide as hidden, and N
    pieces hold all words. (C2) targets, states and gradient are of hidden's rows.
  }];
  let ownArguments = (ins Model_FloatTensor:$hidden, Model_WeightTensor:$weight,
    Model_Tensor:$targets, I64Attr:$words, I64Attr:$shards, F64Attr:$cap);
  let results = (outs Model_FloatTensor:$states,
                      Optional<Model_FloatTensor>:$gradient);
  let assemblyFormat = "operands attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Model_HeadMergeOp : Model_StagedOp<Model_Dialect, "head_merge",
    [Pure,
     DeclareOpInterfaceMethods<Model_MemoryOp, ["getMemoryTies"]>,
     DeclareOpInterfaceMethods<Model_LibraryOp>]> {
  let summary = "loss and gradient from what all pieces of a head found";
  let description = [{
    states f32 [N N B, T, 4] of all ranks, targets [N B, T]; loss, count and
    correct of this rank's rows as model.head_loss has them. With `gradient` and
    W [P, H] also this rank's summand of the gradient of the rows of all ranks,
    f32, in the place of gradient. (C1) gradient, W and summand come together, and
    gradient has the type of summand. (C2) targets are of the states' rows, and
    correct of this rank's.
  }];
  let ownArguments = (ins Model_FloatTensor:$states, Model_Tensor:$targets,
    Variadic<Model_Tensor>:$of_gradient, I64Attr:$words, I64Attr:$piece,
    I64Attr:$shards, F64Attr:$cap);
  let results = (outs Model_FloatTensor:$loss, Model_FloatTensor:$count,
    Model_Tensor:$correct, Optional<Model_FloatTensor>:$summand);
  let assemblyFormat = "operands attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

#endif // QLORA_DIALECTS_MODEL_MODELSHARDOPS_TD
