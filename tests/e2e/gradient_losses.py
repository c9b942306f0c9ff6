# SPDX-License-Identifier: MIT

"""Losses for gradients.py, as MLIR: what makes a loss of %f and the head's weight
%h, and the sizes of the model around."""

B, T, H, V = 2, 7, 16, 24
X = f"tensor<?x?x{H}xf32>"
LINES, ONE, MASK = "tensor<?xf32>", "tensor<1xf32>", "tensor<?x?xi32>"
HEAD = f"""
  %loss, %count, %correct = model.head_loss %f, %h, %targets
      : (XX, tensor<{V}x{H}xf32>, {MASK}) -> ({ONE}, {ONE}, {MASK})"""


# Logits of two words that are columns of %f in the place of products.
COLUMNS = f"""
  %list = model.token_list {{tokens = array<i64: 20, 3>}} : tensor<2xf32>
  %given, %wide = model.split %f
      : (XX) -> (tensor<?x?x2xf32>, tensor<?x?x{H - 2}xf32>)"""
GIVEN = f"""{COLUMNS}
  %loss, %count, %correct = model.head_loss %f, %h, %targets columns %given, %list
      {{cap = 2.0 : f64}}
      : (XX, tensor<{V}x{H}xf32>, {MASK}, tensor<?x?x2xf32>, tensor<2xf32>)
        -> ({ONE}, {ONE}, {MASK})"""


def kto_loss(flag):
    """The answer of the first line, which has more labels, is the desirable one.
    A divergence is 0 here: mismatched answers are less likely than what the
    reference says."""
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
  }}
  %s, %loss, %count, %r:6 = model.kto_loss %l, %n, %n, %d {{beta = 0.05 : f64,
      desirable_weight = 2.0 : f64, undesirable_weight = 0.5 : f64{flag}}}
      : ({LINES}, {LINES}, {LINES}, {LINES})
        -> ({LINES}, {", ".join([ONE] * 8)})"""


# What makes a loss of %f and the head's weight %h, where that is not HEAD: one
# pair, of the two lines, or two answers, or one with a mismatched one. The head
# itself is not trained.
LOSSES = {
    "head_loss of given columns": GIVEN,
    "dpo_loss of given columns": f"""{COLUMNS}
  %l, %n, %correct = model.head_loss %f, %h, %targets columns %given, %list
      : (XX, tensor<{V}x{H}xf32>, {MASK}, tensor<?x?x2xf32>, tensor<2xf32>)
        -> ({LINES}, {LINES}, {MASK})
  %s, %loss, %count, %r:5 = model.dpo_loss %l, %n, %n {{beta = 0.4 : f64}}
      : ({LINES}, {LINES}, {LINES})
        -> ({LINES}, {", ".join([ONE] * 7)})""",
    "kto_loss": kto_loss(", mismatched"),
    "kto_loss_unmatched": kto_loss(""),
    "dpo_loss": f"""
  %l, %n, %correct = model.head_loss %f, %h, %targets
      : (XX, tensor<{V}x{H}xf32>, {MASK}) -> ({LINES}, {LINES}, {MASK})
  %s, %loss, %count, %r:5 = model.dpo_loss %l, %n, %n {{beta = 0.4 : f64}}
      : ({LINES}, {LINES}, {LINES})
        -> ({LINES}, {", ".join([ONE] * 7)})""",
    "orpo_loss": f"""
  %l, %n, %correct = model.head_loss %f, %h, %targets
      : (XX, tensor<{V}x{H}xf32>, {MASK}) -> ({LINES}, {LINES}, {MASK})
  %p, %m, %c2 = model.head_loss %f, %h, %ids
      : (XX, tensor<{V}x{H}xf32>, {MASK}) -> ({LINES}, {LINES}, {MASK})
  %s, %t, %loss, %count, %r:5 = model.orpo_loss %l, %n, %p, %m
      {{beta = 0.4 : f64}}
      : ({LINES}, {LINES}, {LINES}, {LINES})
        -> ({LINES}, {LINES}, {", ".join([ONE] * 7)})""",
}
