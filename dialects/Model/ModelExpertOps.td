// SPDX-License-Identifier: MIT

// Mixtures of experts (Shazeer et al., 2017) without dropped tokens. Included
// by ModelOps.td, whose conventions and classes apply.
//
//   %weights, %choices        = model.route %logits
//   %order, %places, %experts, %offsets = model.sort_by_expert %choices
//   %rows = model.gather_rows %x, %order, %places
//   %h    = model.grouped_linear %rows, %w1, %offsets     // and row ops
//   %o    = model.grouped_linear %h, %w2, %offsets
//   %y    = model.combine_rows %o, %order, %places weights %weights
//
// N tokens with k choices each give N * k rows [B, T, k, C], sorted by expert.
// The first three dimensions matter only as their product, which is static.
// Kernels read the number of rows per expert from `offsets` in device memory.
// So plans, recomputation and CUDA graphs need no special case.

#ifndef QLORA_DIALECTS_MODEL_MODELEXPERTOPS_TD
#define QLORA_DIALECTS_MODEL_MODELEXPERTOPS_TD

def Model_RouteOp : Model_Library<"route",
    [Model_TokenwiseOp,
     DeclareOpInterfaceMethods<Model_LibraryOp, ["isFullPrecisionResult"]>]> {
  let summary = "the k experts of each token, and their weights";
  let description = [{
    logits [B, T, E]. choices [B, T, k] are the experts with the largest logits,
    largest first; the lower index wins a tie. weights f32 [B, T, k] are a
    softmax in f32 over the chosen k, or with `over_all` over all E. A softmax
    over the chosen k equals a softmax over all, divided by the sum of the
    chosen (Mixtral; `norm_topk_prob` of Qwen). (C1) weights are f32, choices
    i32, both [B, T, k]. (C2) k is from 1 to E.
  }];
  let ownArguments = (ins Model_FloatTensor:$logits, UnitAttr:$over_all);
  let results = (outs Model_FloatTensor:$weights, Model_Tensor:$choices);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

def Model_SortByExpertOp
    : Model_Library<"sort_by_expert", [Model_TokenwiseOp, Model_GroupingOp]> {
  let summary = "the order of rows by expert, then by token";
  let description = [{
    Each choice has one row. Choices are counted over [B, T, k]. Results:
    * order[p]: the choice of the sorted row p;
    * places: the inverse of order, so places[order[p]] is p;
    * experts[p]: the expert of the sorted row p;
    * offsets: the rows of expert e are [offsets[e], offsets[e + 1]).

    With several `ranks` each rank has E / ranks consecutive experts and sorts
    only their rows. own_offsets are the offsets of these experts. The places of
    other experts' choices are -1. After the rank's last row, order is -1, and
    experts is any expert of this rank.

    (C1) all are i32; order, places and experts have the shape of choices,
    offsets is [E + 1]. (C2) own_offsets [E / ranks + 1] is present if ranks >
    1, and ranks divide E.
  }];
  let ownArguments = (ins Model_Tensor:$choices,
    DefaultValuedAttr<I64Attr, "1">:$ranks);
  let results = (outs Model_Tensor:$order, Model_Tensor:$places,
    Model_Tensor:$experts, Model_Tensor:$offsets,
    Optional<Model_Tensor>:$own_offsets);
  let extraClassDeclaration = [{
    ::mlir::Value getGroupOffsets() { return getOffsets(); }
    ::llvm::SmallVector<::mlir::Value> shardGroups(
        ::mlir::OpBuilder &builder, ::mlir::Value rows, int64_t ranks);
  }];
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

/// gather_rows and combine_rows: move data between tokens and sorted rows. Each
/// op is the other's transpose, so it computes the other's gradient of x.
/// train.choice_grad computes the gradient of `weights` for both.
class Model_Moved<string mnemonic, list<Trait> traits = []>
    : Model_Library<mnemonic, [Model_TokenwiseOp] # traits> {
  let ownArguments = (ins Model_FloatTensor:$x, Model_Tensor:$order,
    Model_Tensor:$places, Optional<Model_FloatTensor>:$weights);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = [{
    $x `,` $order `,` $places (`weights` $weights^)? attr-dict
    `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def Model_GatherRowsOp : Model_Moved<"gather_rows"> {
  let summary = "copies tokens to rows sorted by expert";
  let description = [{
    out[p] = weights[order[p]] * x[order[p] / k]. Without weights the factor is
    1; if order[p] is -1, out[p] is 0. (C1) order and places are i32 [B, T, k];
    x is [B, T, C] and the result [B, T, k, C]. (C2) weights are f32 [B, T, k].
  }];
}

def Model_CombineRowsOp
    : Model_Moved<"combine_rows",
                  [Model_ReductionTransparentOp, Model_UngroupOp]> {
  let summary = "the sum of each token's rows";
  let description = [{
    out[n] = sum over j of weights[n, j] * x[places[n, j]], in the order of j.
    Without weights the factor is 1; rows whose place is -1 are skipped. (C1)
    order and places are i32 [B, T, k]; x is [B, T, k, C] and the result [B, T,
    C]. (C2) weights are f32 [B, T, k].
  }];
}

def Model_TransposeRowsOp
    : Model_Library<"transpose_rows", [Model_TokenwiseOp]> {
  let summary = "transposes each row, seen as a matrix";
  let description = [{
    A row is seen as [C / inner, inner] and becomes its transpose, [inner, C /
    inner]. With `inner` 2, interleaved columns (gate and up in some files)
    become two halves. (C1) inner is positive and divides the last dimension of
    x, and the result has x's type.
  }];
  let ownArguments = (ins Model_FloatTensor:$x, I64Attr:$inner);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

def Model_GroupedLinearOp : Model_Library<"grouped_linear",
    [Model_AccumulatingOp, Model_WeightedMatmul]> {
  let summary = "y = init + scale * x . W_e^T, for the rows of each group e";
  let description = [{
    Rows [offsets[e], offsets[e + 1]) of x are multiplied with matrix e of W.
    Rows after the last offset have no group; there x . W^T is 0. W has two
    dimensions: the stacked matrices, [E * out, in], or, with `layout in_out`,
    [E * in, out]. With `groups_last` the groups share the second dimension,
    with group e in columns j * E + e, as in PEFT's B of experts: [out, in * E].
    `module` is the path of the parameter in the Hugging Face model. About one
    in `shared` rows of x is expected to have a group.

    (C1) x is as wide as a matrix's `in`. (C2) the last dimension of y is a
    matrix's `out`, the others are x's. (C3) init has y's type. (C4) offsets is
    i32 [E + 1], and E divides the dimension of W that groups share. (C5) with
    groups_last W is not quantized.
  }];
  let ownArguments = (ins Model_FloatTensor:$x, Model_WeightTensor:$weight,
    Model_Tensor:$offsets, Optional<Model_FloatTensor>:$init,
    DefaultValuedAttr<F64Attr, "1.0">:$scale,
    OptionalAttr<StrAttr>:$module,
    DefaultValuedAttr<Model_WeightLayoutAttr,
                      "::qlora::model::WeightLayout::OutIn">:$layout,
    UnitAttr:$groups_last, DefaultValuedAttr<I64Attr, "1">:$shared);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = [{
    $x `,` $weight `,` $offsets (`layout` $layout^)? (`init` $init^)?
    attr-dict `:` functional-type(operands, results)
  }];
  let extraClassDeclaration = [{
    ::mlir::Value getProduct() { return getResult(); }
    int64_t getGroups();
    ::mlir::Value getGroupOffsets() { return getOffsets(); }
    unsigned getGroupDimension();
    void noteRowsOfRanks(int64_t ranks) { setShared(ranks); }
  }];
  let hasVerifier = 1;
}

// The auxiliary loss of routers (Fedus et al., 2021, as in transformers). The
// logits and choices of n layers with E experts each are concatenated:
//
//   %p      = model.router_probs %logits, %segments         // [B, T, n * E]
//   %sums   = model.column_sum %p                           // [E]
//   %marks  = model.mark_tokens %segments                   // [B, T, n * k]
//   %counts = model.count_choices %choices, %marks          // [E]
//   %slopes, %loss = model.router_loss %sums, %counts

def Model_RouterProbsOp
    : Model_Row<"router_probs", [], ["getRowColumns", "getRowMaps"]> {
  let summary = "the softmax of a router's logits, 0 for padding";
  let description = [{
    logits [B, T, n * E], segments i32 [B, T] with 0 for padding. C = E, the
    attribute `experts`. (C1) E divides the logits' last dimension. (C2) the
    result has the type of the logits.
  }];
  let ownArguments = (ins Model_FloatTensor:$logits, Model_Tensor:$segments,
    I64Attr:$experts);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

def Model_MarkTokensOp : Model_Row<"mark_tokens", [], ["getRowMaps"]> {
  let summary = "1 for tokens, 0 for padding";
  let description = "segments i32 [B, T], the result [B, T, C].";
  let ownArguments = (ins Model_Tensor:$segments);
  let results = (outs Model_FloatTensor:$result);
  let assemblyFormat = Model_OperandsFormat;
}

def Model_CountChoicesOp
    : Model_Library<"count_choices", [Model_TokenReductionOp]> {
  let summary = "how often each expert was chosen";
  let description = [{
    counts[e] is the sum of marks where choices are e. (C1) choices are i32
    [B, T, k], marks of that shape, counts f32 [E].
  }];
  let ownArguments = (ins Model_Tensor:$choices, Model_FloatTensor:$marks);
  let results = (outs Model_FloatTensor:$counts);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

def Model_RouterLossOp : Model_Row<"router_loss",
    [DeclareOpInterfaceMethods<Model_LossOp, ["getReadName", "shardLoss"]>],
    ["isScalarResult"]> {
  let summary = "the auxiliary loss of routers";
  let description = [{
    There are R rows with `chosen` counted choices each. The loss is M *
    coefficient * E * sum over e of (counts[e] / R) * (sums[e] / R). M is the
    mean number of labels of the step's micro-batches. Like the main loss, which
    is a sum over labels, this loss is later divided by the step's labels: its
    mean over the micro-batches remains. `slopes` are the derivatives with
    respect to the sums. (C1) operands and slopes are f32 [E], the loss f32 [1].
    (C2) `chosen` is positive.
  }];
  let ownArguments = (ins Model_FloatTensor:$sums, Model_FloatTensor:$counts,
    F64Attr:$coefficient, I64Attr:$chosen);
  let results = (outs Model_FloatTensor:$slopes, Model_FloatTensor:$loss);
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

#endif // QLORA_DIALECTS_MODEL_MODELEXPERTOPS_TD
