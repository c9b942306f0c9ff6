// SPDX-License-Identifier: MIT

// Ops of training objectives: LM head, cross-entropy and preference losses.
// Included by ModelOps.td, whose conventions and classes apply.

#ifndef QLORA_DIALECTS_MODEL_MODELLOSSOPS_TD
#define QLORA_DIALECTS_MODEL_MODELLOSSOPS_TD

def Model_HeadLossOp
    : Model_Library<"head_loss",
        [Model_WeightedMatmul, Model_TableOp, Model_TokenReductionOp,
         DeclareOpInterfaceMethods<Model_LossOp, ["getReadName"]>]> {
  let summary = "LM head and cross-entropy, without storing all logits";
  let description = [{
    hidden [B, T, H], W [V, H], targets [B, T] i32 (the label of the next token;
    -100: none). Results: loss sum and label count, f32 [1], or f32 [B] with one
    value per sequence; correct i32 [B, T], 1 if the target is the argmax. With
    a `cap` (not 0) logits z are cap * tanh(z / cap). `columns` has two
    operands: [B, T, k], which replaces the logits of k tokens before the cap,
    and f32 [k], the ids of these tokens.

    A label's loss has this form, in which e is `label_smoothing`, and s is 1,
    or with `own_probability` the label's probability, which is a constant in
    the derivative:

        s * ((1 - e) * (lse(z) - z[label]) + e * (lse(z) - mean of z))

    (C1) W's second dimension is H. (C2) targets is [B, T] i32. (C3) W is not
    quantized. (C4) the results have these types. (C5) cap is neither negative
    nor infinite. (C6) columns and their token ids are both present or both
    absent, with the same k. (C7) label_smoothing is in [0, 1].
  }];
  let ownArguments = (ins Model_FloatTensor:$hidden, Model_WeightTensor:$weight,
    Model_Tensor:$targets, Variadic<Model_FloatTensor>:$replaced,
    DefaultValuedAttr<F64Attr, "0.0">:$cap,
    DefaultValuedAttr<F64Attr, "0.0">:$label_smoothing,
    UnitAttr:$own_probability);
  let results = (outs Model_FloatTensor:$loss, Model_FloatTensor:$count,
    Model_Tensor:$correct);
  let assemblyFormat = [{
    $hidden `,` $weight `,` $targets (`columns` $replaced^)? attr-dict
    `:` functional-type(operands, results)
  }];
  let extraClassDeclaration = Model_HeadMethods # [{
    bool replaceOutputs(::mlir::Value columns, ::mlir::Value words) {
      getReplacedMutable().assign({columns, words});
      return true;
    }
  }];
  let hasVerifier = 1;
}

/// A loss of sequences. Operands are f32 [B], one value per sequence. The
/// results `slopes` are f32 [B] too, for reverse mode. The results `sums` are
/// f32 [1] and named after the statistics that they are (Enums.def).
class Model_SequenceLoss<string mnemonic, list<string> slopes,
                         list<string> sums>
    : Model_Row<mnemonic,
                [DeclareOpInterfaceMethods<Model_LossOp, ["getReadName"]>],
                ["isScalarResult"]> {
  defvar names = !listconcat(slopes, sums);
  let results = !dag(outs, !listsplat(Model_FloatTensor, !size(names)), names);
  let extraClassDeclaration = [{
    /// Words of the statistics, by result; empty for slopes.
    static constexpr ::llvm::StringLiteral kReadNames[] = {"}]
      # !interleave(!listconcat(!listsplat("", !size(slopes)), sums),
                    "\", \"") # [{"};
    /// Returns the types of the results for losses f32 [B].
    static ::llvm::SmallVector<::mlir::Type> typesOf(::mlir::Value losses) {
      return ::qlora::model::lossTypes(losses, kReadNames);
    }
  }];
  let extraClassDefinition = [{
    ::llvm::StringRef $cppClass::getReadName(unsigned result) {
      return kReadNames[result];
    }
    bool $cppClass::isScalarResult(unsigned result) {
      return !kReadNames[result].empty();
    }
  }];
  let assemblyFormat = Model_OperandsFormat;
  let hasVerifier = 1;
}

/// A loss over pairs of answers to a prompt. A batch has the sequences of all
/// chosen answers, then those of the rejected answers in the same order. A pair
/// without labels is not counted.
class Model_PairLoss<string mnemonic, list<string> slopes = ["slopes"],
                     list<string> own = []>
    : Model_SequenceLoss<mnemonic, slopes,
        !listconcat(["loss_sum", "label_count", "chosen_rewards",
                     "rejected_rewards", "right_pairs", "chosen_logps",
                     "rejected_logps"], own)>;

def Model_DpoLossOp
    : Model_PairLoss<"dpo_loss", ["slopes"], ["chosen_loss"]> {
  let summary = "losses of pairs, of DPO and of CPO";
  let description = [{
    `losses` and `labels` have one value per sequence of the policy. `reference`
    has the losses of the model that training started from. CPO has none; then
    these losses are 0 below.

        r = reference - loss       log-ratio of policy to reference

    The loss of a pair is the sum of the losses `kinds`, each with its weight.
    PairLosses.def has their words and formulas: functions of an answer's r, or
    of the difference of two. The default is `sigmoid`:

        -log sigmoid(beta * (r of the chosen answer - r of the rejected answer))

    With `sft`, P pairs add P times the mean loss of all tokens of their chosen
    answers. `chosen_loss` is this number, without a weight.

    A reward is beta * r. Without a reference, rewards and log-probabilities are
    per token if a loss of `kinds` is. A pair is `right` if its chosen reward is
    larger. `slopes` are the derivatives of the loss sum with respect to
    `losses`. (C1) the operands are f32 [B] each, B even. (C2) the sums are f32
    [1]. (C3) `kinds` are words of PairLosses.def, each with a weight.
  }];
  let ownArguments = (ins Model_FloatTensor:$losses, Model_FloatTensor:$labels,
    Optional<Model_FloatTensor>:$reference, F64Attr:$beta,
    DefaultValuedAttr<StrArrayAttr, "{\"sigmoid\"}">:$kinds,
    DefaultValuedAttr<DenseF64ArrayAttr, "{1.0}">:$weights,
    DefaultValuedAttr<F64Attr, "0.0">:$label_smoothing,
    DefaultValuedAttr<F64Attr, "0.05">:$tau,
    DefaultValuedAttr<F64Attr, "0.5">:$gamma);
}

def Model_OrpoLossOp
    : Model_PairLoss<"orpo_loss", ["slopes", "prompt_slopes"],
                     ["log_odds", "chosen_loss", "odds_loss"]> {
  let summary = "odds ratio preference optimization";
  let description = [{
    `losses` and `labels` cover the answers. `prompt_losses` and `prompt_labels`
    cover the prompts before them.

        p = exp(-loss / labels)       of a sequence
        odds = p / (1 - p)
        z = log(odds of the chosen answer / odds of the rejected answer)

    The loss of a pair is -beta * log sigmoid(z). P pairs add P times the mean
    loss of all tokens of their chosen sequences. A reward is beta * log p;
    `chosen_logps` sums log p. A pair is `right` if its chosen reward is larger.
    `log_odds` sums z. The loss sum is `chosen_loss` + beta * `odds_loss`.
    `slopes` and `prompt_slopes` are the derivatives of the loss sum with
    respect to the losses. (C1) the operands are f32 [B] each, B even. (C2) the
    sums are f32 [1]. Hong et al., 2024, as in TRL.
  }];
  let ownArguments = (ins Model_FloatTensor:$losses, Model_FloatTensor:$labels,
    Model_FloatTensor:$prompt_losses, Model_FloatTensor:$prompt_labels,
    F64Attr:$beta);
}

def Model_KtoLossOp
    : Model_SequenceLoss<"kto_loss", ["slopes"],
        ["loss_sum", "label_count", "chosen_rewards", "rejected_rewards",
         "chosen_logps", "rejected_logps", "chosen_count", "divergence"]> {
  let summary = "Kahneman-Tversky optimization, and APO-zero of single answers";
  let description = [{
    Each answer is desirable (1) or not (0). `losses` and `labels` have one
    value per sequence of the policy. `reference` has the losses of the model
    that training started from.

        w = desirable_weight if desirable, else undesirable_weight
        s = 1 if desirable, else -1
        r = reference - loss
        z = s * beta * (r - kl)

    The loss of an answer is w * (1 - sigmoid(z)), and a reward is beta * r. A
    sequence without labels has no answer.

    With `mismatched` the second half of the sequences pairs the prompts of the
    first half with answers to other prompts. These give no gradient: kl is the
    mean of their r, at least 0, and a constant in the derivative. Without
    `mismatched` all sequences have answers and kl is 0, which is APO-zero's
    loss.

    `chosen_...` are sums over desirable answers, `rejected_...` over
    undesirable ones, and `divergence` adds kl once per answer. `slopes` are the
    derivatives of the loss sum with respect to `losses`. (C1) the operands are
    f32 [B] each; with `mismatched` B is even. (C2) the sums are f32 [1].
    Ethayarajh et al., 2024; D'Oosterlinck et al., 2024; as in TRL.
  }];
  let ownArguments = (ins Model_FloatTensor:$losses, Model_FloatTensor:$labels,
    Model_FloatTensor:$reference, Model_FloatTensor:$desirable, F64Attr:$beta,
    F64Attr:$desirable_weight, F64Attr:$undesirable_weight,
    UnitAttr:$mismatched);
}

#endif // QLORA_DIALECTS_MODEL_MODELLOSSOPS_TD
