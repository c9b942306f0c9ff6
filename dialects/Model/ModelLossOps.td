// SPDX-License-Identifier: MIT

// Ops of training objectives: LM head, cross-entropy and preference losses.
// Included by ModelOps.td, whose conventions and classes apply.

#ifndef QLORA_DIALECTS_MODEL_MODELLOSSOPS_TD
#define QLORA_DIALECTS_MODEL_MODELLOSSOPS_TD

def Model_HeadLossOp
    : Model_Library<"head_loss",
        [Model_WeightedMatmul, Model_TableOp, Model_TokenReductionOp,
         DeclareOpInterfaceMethods<Model_LossOp, ["getReadName"]>]> {
  let summary = "output head and cross entropy, logits never whole";
  let description = [{
    hidden [B, T, H], W [V, H], targets [B, T] i32 (the label of the next
    token; -100: none). Results: loss sum and label count, f32 [1], or of each
    line, f32 [B]; correct
    i32 [B, T], 1 where the target is the argmax. With a `cap` (not 0) logits
    z are cap * tanh(z / cap). With `columns` some logits are given, before the
    cap, in the place of products with W: columns [B, T, k], and f32 [k], the
    words that they are of. (C1) W's second dimension
    is H. (C2) targets is [B, T] i32. (C3) W is not 4-bit. (C4) the results
    have these types. (C5) cap is neither negative nor infinite. (C6) columns and their words
    come together and agree.
  }];
  let ownArguments = (ins Model_FloatTensor:$hidden, Model_WeightTensor:$weight,
    Model_Tensor:$targets, Variadic<Model_FloatTensor>:$replaced,
    DefaultValuedAttr<F64Attr, "0.0">:$cap);
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

/// Results that the runtime reads of every pair loss: sums over pairs, f32 [1].
defvar Model_PairSums = (outs Model_FloatTensor:$loss, Model_FloatTensor:$count,
    Model_FloatTensor:$chosen_rewards, Model_FloatTensor:$rejected_rewards,
    Model_FloatTensor:$right, Model_FloatTensor:$chosen_logps,
    Model_FloatTensor:$rejected_logps);

/// A loss over pairs of answers to a prompt. A batch has the sequences of all
/// chosen answers, then the rejected ones in the same order: operands and
/// slopes are f32 [B]. A pair without any labelled token is not counted.
class Model_PairLoss<string mnemonic>
    : Model_Row<mnemonic,
        [DeclareOpInterfaceMethods<Model_RowOp, ["isScalarResult"]>,
         DeclareOpInterfaceMethods<Model_LossOp, ["getReadName"]>]> {
  let assemblyFormat = "operands attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Model_DpoLossOp : Model_PairLoss<"dpo_loss"> {
  let summary = "direct preference optimization, the sigmoid loss";
  let description = [{
    losses and labels are those of the policy's lines, `reference` the losses of
    the model it started from: with r = reference - loss of a line (how much
    likelier the policy makes it) and z = beta * (r chosen - r rejected), the
    loss of a pair is -log sigmoid(z), a reward is beta * r, and a pair is
    `right` where z > 0. `slopes` are the derivatives of the sum by `losses`.
    (C1) the lines are f32 [B] each, B even. (C2) the sums are f32 [1].
    Rafailov et al., 2023.
  }];
  let ownArguments = (ins Model_FloatTensor:$losses, Model_FloatTensor:$labels,
    Model_FloatTensor:$reference, F64Attr:$beta);
  let results = !con((outs Model_FloatTensor:$slopes), Model_PairSums);
}

def Model_OrpoLossOp : Model_PairLoss<"orpo_loss"> {
  let summary = "odds ratio preference optimization";
  let description = [{
    losses and labels are those of the answers, prompt_losses and prompt_labels
    those of what is before them. With p = exp(-loss / labels) of a line, its
    odds p / (1 - p), and z the logarithm of those chosen by those rejected, the
    loss of a pair is -beta * log sigmoid(z), and to that of P pairs is added P
    times the mean loss of all tokens of their chosen lines. A reward is
    beta * log p, and log p is what `chosen_logps` adds up; a pair is `right`
    where its rewards are. `slopes` and `prompt_slopes` are the derivatives of the
    sum by the losses. (C1) the lines are f32 [B] each, B even. (C2) the sums
    are f32 [1]. Hong et al., 2024, as TRL has it.
  }];
  let ownArguments = (ins Model_FloatTensor:$losses, Model_FloatTensor:$labels,
    Model_FloatTensor:$prompt_losses, Model_FloatTensor:$prompt_labels,
    F64Attr:$beta);
  let results = !con((outs Model_FloatTensor:$slopes,
                      Model_FloatTensor:$prompt_slopes),
                     Model_PairSums);
}

def Model_KtoLossOp
    : Model_Row<"kto_loss",
        [DeclareOpInterfaceMethods<Model_RowOp, ["isScalarResult"]>,
         DeclareOpInterfaceMethods<Model_LossOp, ["getReadName"]>]> {
  let summary = "Kahneman-Tversky optimization, and APO-zero of single answers";
  let description = [{
    Of answers that are each desirable (1) or not (0): s = 1 or -1, w one of the
    weights. losses and labels are those of the policy's lines, `reference` the
    losses of the model it started from: with r = reference - loss of a line and
    z = s * beta * (r - kl), the loss of an answer is w * (1 - sigmoid(z)), and a
    reward is beta * r. A line without labels has no answer.

    With `mismatched` the second half of the lines are the prompts of the first
    with other prompts' answers, which are not learned: kl is the mean of their
    r, 0 if it is less, and a constant of the derivative. Without it, all lines
    have answers and kl is 0, which is APO-zero's loss.

    `chosen_...` are sums over desirable answers, `rejected_...` over the others,
    `divergence` is kl once for each answer. `slopes` are the derivatives of the
    sum by `losses`. (C1) the lines are f32 [B] each, with `mismatched` B is even.
    (C2) the sums are f32 [1]. Ethayarajh et al., 2024; D'Oosterlinck et al.,
    2024; as TRL has them.
  }];
  let ownArguments = (ins Model_FloatTensor:$losses, Model_FloatTensor:$labels,
    Model_FloatTensor:$reference, Model_FloatTensor:$desirable, F64Attr:$beta,
    F64Attr:$desirable_weight, F64Attr:$undesirable_weight,
    UnitAttr:$mismatched);
  let results = (outs Model_FloatTensor:$slopes, Model_FloatTensor:$loss,
    Model_FloatTensor:$count, Model_FloatTensor:$chosen_rewards,
    Model_FloatTensor:$rejected_rewards, Model_FloatTensor:$chosen_logps,
    Model_FloatTensor:$rejected_logps, Model_FloatTensor:$chosen_count,
    Model_FloatTensor:$divergence);
  let assemblyFormat = "operands attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

#endif // QLORA_DIALECTS_MODEL_MODELLOSSOPS_TD
