# SPDX-License-Identifier: MIT

"""Losses for gradients.py, as MLIR that computes a loss from %f and the head's
weight %h. Also the sizes of the model around it."""

B, T, H, V = 2, 7, 16, 24
X = f"tensor<?x?x{H}xf32>"
LINES, ONE, MASK = "tensor<?xf32>", "tensor<1xf32>", "tensor<?x?xi32>"
HEAD = f"""
  %loss, %count, %correct = model.head_loss %f, %h, %targets
      : (XX, tensor<{V}x{H}xf32>, {MASK}) -> ({ONE}, {ONE}, {MASK})"""


# Takes the logits of two tokens from columns of %f instead of a matmul.
COLUMNS = f"""
  %list = model.token_list {{tokens = array<i64: 20, 3>}} : tensor<2xf32>
  %given, %wide = model.split %f
      : (XX) -> (tensor<?x?x2xf32>, tensor<?x?x{H - 2}xf32>)"""
GIVEN = f"""{COLUMNS}
  %loss, %count, %correct = model.head_loss %f, %h, %targets columns %given, %list
      {{cap = 2.0 : f64}}
      : (XX, tensor<{V}x{H}xf32>, {MASK}, tensor<?x?x2xf32>, tensor<2xf32>)
        -> ({ONE}, {ONE}, {MASK})"""


def token_loss(attributes):
    """Returns the MLIR of a head_loss with attributes."""
    return f"""
  %loss, %count, %correct = model.head_loss %f, %h, %targets {{{attributes}}}
      : (XX, tensor<{V}x{H}xf32>, {MASK}) -> ({ONE}, {ONE}, {MASK})"""


def kto_loss(flag, reference=""):
    """Returns the MLIR of a KTO loss. The answer with more labels, in sequence
    0, is desirable. The reference model's losses are %ref of the MLIR
    `reference`, or else 1 per label. The policy's losses are higher, so the KL
    estimate is clamped to 0."""
    asked = "%ref" if reference else "%n"
    return f"""
  %l, %n, %correct = model.head_loss %f, %h, %targets
      : (XX, tensor<{V}x{H}xf32>, {MASK}) -> ({LINES}, {LINES}, {MASK})
  %d = model.rows(%n) attributes {{columns = {B} : i64, label = "desirable",
                                  maps = [#model.map<full>]}}
      : ({LINES}) -> ({LINES}) {{
  ^bb0(%p: tensor<{B}xf32>):
    %zero = arith.constant 0.0 : f32
    %no = model.row_splat %zero : tensor<{B}xf32>
    %one = arith.constant 1.0 : f32
    %yes = model.row_splat %one : tensor<{B}xf32>
    %many = arith.constant {T - 1.5} : f32
    %limit = model.row_splat %many : tensor<{B}xf32>
    %is = arith.cmpf ogt, %p, %limit : tensor<{B}xf32>
    %r = arith.select %is, %yes, %no : tensor<{B}xi1>, tensor<{B}xf32>
    model.row_yield %r : tensor<{B}xf32>
  }}{reference}
  %s, %loss, %count, %r:6 = model.kto_loss %l, %n, {asked}, %d {{
      beta = 0.05 : f64,
      desirable_weight = 2.0 : f64, undesirable_weight = 0.5 : f64{flag}}}
      : ({LINES}, {LINES}, {LINES}, {LINES})
        -> ({LINES}, {", ".join([ONE] * 8)})"""


def pair_loss(kinds, weights=(1.0,), reference=True):
    """Returns the MLIR of losses of a pair. The reference model's losses are 1
    per label; without it the losses are those of CPO. With this beta no sigmoid
    is saturated."""
    words = ", ".join(f'"{kind}"' for kind in kinds.split())
    each = ", ".join(f"{weight}" for weight in weights)
    operands = ["%l", "%n"] + ["%n"] * reference
    return f"""
  %l, %n, %correct = model.head_loss %f, %h, %targets
      : (XX, tensor<{V}x{H}xf32>, {MASK}) -> ({LINES}, {LINES}, {MASK})
  %s, %loss, %count, %r:6 = model.dpo_loss {", ".join(operands)} {{
      beta = 0.1 : f64, kinds = [{words}], weights = array<f64: {each}>,
      label_smoothing = 0.2 : f64, tau = 0.7 : f64, gamma = 0.3 : f64}}
      : ({", ".join([LINES] * len(operands))})
        -> ({LINES}, {", ".join([ONE] * 8)})"""


def routers(coefficient):
    """Returns MLIR of two layers' routers @r and @s, with 4 experts each, and
    their loss."""
    logits, choices = "tensor<?x?x4xf32>", "tensor<?x?x2xi32>"
    layers = "".join(f"""
      %w{name} = model.weight @{name}.weight : tensor<4x{H}xf32>
      %l{name} = model.linear %x, %w{name} {{module = "{name}"}}
          : (XX, tensor<4x{H}xf32>) -> {logits}
      %p{name}, %c{name} = model.route %l{name}
          : ({logits}) -> (tensor<?x?x2xf32>, {choices})""" for name in "rs")
    return layers + f"""
      %l = model.concat %lr, %ls : ({logits}, {logits}) -> tensor<?x?x8xf32>
      %c = model.concat %cr, %cs
          : ({choices}, {choices}) -> tensor<?x?x4xi32>
      %p = model.router_probs %l, %segments {{experts = 4 : i64}}
          : (tensor<?x?x8xf32>, {MASK}) -> tensor<?x?x8xf32>
      %sums = model.column_sum %p : (tensor<?x?x8xf32>) -> tensor<4xf32>
      %marks = model.mark_tokens %segments : ({MASK}) -> tensor<?x?x4xf32>
      %counts = model.count_choices %c, %marks
          : (tensor<?x?x4xi32>, tensor<?x?x4xf32>) -> tensor<4xf32>
      %slopes, %router = model.router_loss %sums, %counts
          {{coefficient = {coefficient} : f64, chosen = 2 : i64}}
          : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, {ONE})
      %y = model.add %x, %x : XX"""


# Losses other than HEAD, from %f and the head's frozen weight %h. The two
# sequences are a preference pair, two answers, or an answer and a mismatched
# answer.
LOSSES = {
    "head_loss of given columns": GIVEN,
    "head_loss of smoothing": token_loss("label_smoothing = 0.3 : f64"),
    "head_loss of capped smoothing": token_loss(
        "cap = 2.0 : f64, label_smoothing = 0.3 : f64"),
    "head_loss of given columns and smoothing": GIVEN.replace(
        "{cap = 2.0", "{label_smoothing = 0.3 : f64, cap = 2.0"),
    **{f"dpo_loss {kind}": pair_loss(kind) for kind in (
        "sigmoid", "hinge", "ipo", "robust", "exo_pair", "nca_pair", "bco_pair",
        "sppo_hard", "apo_zero", "apo_down", "discopop", "sigmoid_norm")},
    "dpo_loss of several": pair_loss("apo_down sft", (0.5, 1.5)),
    "dpo_loss of tokens": pair_loss("sft"),
    **{f"cpo {kind}": pair_loss(f"{kind} sft", (1.0, 0.7), reference=False)
       for kind in ("sigmoid", "hinge", "ipo", "simpo")},
    "dpo_loss of given columns": f"""{COLUMNS}
  %l, %n, %correct = model.head_loss %f, %h, %targets columns %given, %list
      : (XX, tensor<{V}x{H}xf32>, {MASK}, tensor<?x?x2xf32>, tensor<2xf32>)
        -> ({LINES}, {LINES}, {MASK})
  %s, %loss, %count, %r:6 = model.dpo_loss %l, %n, %n {{beta = 0.4 : f64}}
      : ({LINES}, {LINES}, {LINES})
        -> ({LINES}, {", ".join([ONE] * 8)})""",
    "kto_loss": kto_loss(", mismatched"),
    "kto_loss_unmatched": kto_loss(""),
    "orpo_loss": f"""
  %l, %n, %correct = model.head_loss %f, %h, %targets
      : (XX, tensor<{V}x{H}xf32>, {MASK}) -> ({LINES}, {LINES}, {MASK})
  %p, %m, %c2 = model.head_loss %f, %h, %ids
      : (XX, tensor<{V}x{H}xf32>, {MASK}) -> ({LINES}, {LINES}, {MASK})
  %s, %t, %loss, %count, %r:8 = model.orpo_loss %l, %n, %p, %m
      {{beta = 0.4 : f64}}
      : ({LINES}, {LINES}, {LINES}, {LINES})
        -> ({LINES}, {LINES}, {", ".join([ONE] * 10)})""",
}
