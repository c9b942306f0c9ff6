// SPDX-License-Identifier: MIT

// Functions with inputs that the runtime cannot provide, and trainable
// parameters without a gradient.

// RUN: qlora-opt %s --split-input-file --build-train-step --verify-diagnostics

// expected-error @+1 {{nothing to train: no parameter is trainable; attach adapters or name modules to save}}
module {
  model.parameter @w : tensor<8x8xf32> {file = "a"}
}

// -----

model.parameter @w : tensor<16x8xf32> {file = "a", trainable}
// expected-error @+1 {{has no model.batch and model.length, which specialize-shapes writes}}
func.func @sizes(%ids: tensor<1x3xi32> {model.input = "ids"}) {
  return
}

// -----

model.parameter @w : tensor<16x8xf32> {file = "a", trainable}
// expected-error @+1 {{argument 0 expects one of ids, targets, positions, segments, prompts, lengths, desirable, slots, last, adapters as model.input}}
func.func @input(%ids: tensor<1x3xi32>) attributes {model.batch = 1, model.length = 3} {
  return
}

// -----

model.parameter @w : tensor<16x8xf32> {file = "a", trainable}
// expected-error @+1 {{argument 0 expects one of ids, targets, positions, segments, prompts, lengths, desirable, slots, last, adapters as model.input}}
func.func @unknown_input(%ids: tensor<1x3xi32> {model.input = "mask"}) attributes {model.batch = 1, model.length = 3} {
  return
}

// -----

model.parameter @w : tensor<16x8xf32> {file = "a", trainable}
// expected-error @+1 {{has two arguments for the input 'ids'}}
func.func @twice(%a: tensor<1x3xi32> {model.input = "ids"}, %b: tensor<1x3xi32> {model.input = "ids"}) attributes {model.batch = 1, model.length = 3} {
  return
}

// -----

model.parameter @w : tensor<16x8xf32> {file = "a", trainable}
// expected-error @+1 {{argument 0 expects a type of [B, T] i32, but got 'tensor<3xi32>'}}
func.func @type(%ids: tensor<3xi32> {model.input = "ids"}) attributes {model.batch = 1, model.length = 3} {
  return
}

// -----

model.parameter @w : tensor<16x8xf32> {file = "a", trainable}
// expected-error @+1 {{argument 0 expects a type of [B] f32, but got 'tensor<1x3xi32>'}}
func.func @line_type(%lines: tensor<1x3xi32> {model.input = "desirable"}) attributes {model.batch = 1, model.length = 3} {
  return
}

// -----

model.parameter @w : tensor<16x8xf32> {file = "a", trainable}
// expected-error @+1 {{argument 0 expects a type of [B] i32, but got 'tensor<1xf32>'}}
func.func @last_type(%last: tensor<1xf32> {model.input = "last"}) attributes {model.batch = 1, model.length = 3, model.step = "prefill"} {
  return
}

// -----

model.parameter @w : tensor<16x8xf32> {file = "a", trainable}
func.func @results(%ids: tensor<1x3xi32> {model.input = "ids"}) -> tensor<1x3x8xf32> attributes {model.batch = 1, model.length = 3} {
  %w = model.weight @w : tensor<16x8xf32>
  %x = model.embedding %ids, %w : (tensor<1x3xi32>, tensor<16x8xf32>) -> tensor<1x3x8xf32>
  // expected-error @+1 {{expects the results of a loss: loss_sum, label_count, and others that the runtime reads, each once}}
  return %x : tensor<1x3x8xf32>
}

// -----

model.parameter @w : tensor<16x8xf32> {file = "a"}
// expected-error @+1 {{no gradient reaches the trainable parameter 'unused'}}
model.parameter @unused : tensor<8x8xf32> {file = "a", trainable}
func.func @unused_parameter(%ids: tensor<1x3xi32> {model.input = "ids"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>) attributes {model.batch = 1, model.length = 3} {
  %w = model.weight @w : tensor<16x8xf32>
  %u = model.weight @unused : tensor<8x8xf32>
  %x = model.embedding %ids, %w : (tensor<1x3xi32>, tensor<16x8xf32>) -> tensor<1x3x8xf32>
  %y = model.linear %x, %u : (tensor<1x3x8xf32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
  %loss, %count, %correct = model.head_loss %x, %w, %ids : (tensor<1x3x8xf32>, tensor<16x8xf32>, tensor<1x3xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>
}

// -----

// A scalar that all rows read has no gradient rule, because every row would add
// to its gradient.
model.parameter @w : tensor<16x8xf32> {file = "a"}
model.parameter @temperature : tensor<1xf32> {file = "a", trainable}
func.func @global(%ids: tensor<1x3xi32> {model.input = "ids"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>) attributes {model.batch = 1, model.length = 3} {
  %w = model.weight @w : tensor<16x8xf32>
  %t = model.weight @temperature : tensor<1xf32>
  %x = model.embedding %ids, %w : (tensor<1x3xi32>, tensor<16x8xf32>) -> tensor<1x3x8xf32>
  // expected-error @+1 {{cannot be differentiated with respect to operand 1, which every row reads as 'global'}}
  %y = model.rows(%x, %t) attributes {columns = 8, maps = [#model.map<full>, #model.map<global>]} : (tensor<1x3x8xf32>, tensor<1xf32>) -> tensor<1x3x8xf32> {
  ^bb0(%0: tensor<8xf32>, %1: f32):
    %2 = model.row_splat %1 : tensor<8xf32>
    %3 = arith.mulf %0, %2 : tensor<8xf32>
    model.row_yield %3 : tensor<8xf32>
  }
  %loss, %count, %correct = model.head_loss %y, %w, %ids : (tensor<1x3x8xf32>, tensor<16x8xf32>, tensor<1x3xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>
}

// -----

model.parameter @w : tensor<16x8xf32> {file = "a", trainable}
func.func @no_rule_for_arithmetic(%ids: tensor<1x3xi32> {model.input = "ids"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>) attributes {model.batch = 1, model.length = 3} {
  %w = model.weight @w : tensor<16x8xf32>
  %x = model.embedding %ids, %w : (tensor<1x3xi32>, tensor<16x8xf32>) -> tensor<1x3x8xf32>
  // expected-error @+1 {{has no derivative: no rule for 'math.atan' in its row}}
  %y = model.rows(%x) attributes {columns = 8, maps = [#model.map<full>]} : (tensor<1x3x8xf32>) -> tensor<1x3x8xf32> {
  ^bb0(%0: tensor<8xf32>):
    %1 = math.atan %0 : tensor<8xf32>
    model.row_yield %1 : tensor<8xf32>
  }
  %loss, %count, %correct = model.head_loss %y, %w, %ids : (tensor<1x3x8xf32>, tensor<16x8xf32>, tensor<1x3xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>
}

// -----

model.parameter @w : tensor<16x8xf32> {file = "a", trainable}
func.func @no_rule_for_op(%ids: tensor<1x3xi32> {model.input = "ids"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>) attributes {model.batch = 1, model.length = 3} {
  %w = model.weight @w : tensor<16x8xf32>
  %x = model.embedding %ids, %w : (tensor<1x3xi32>, tensor<16x8xf32>) -> tensor<1x3x8xf32>
  // expected-error @+1 {{has no derivative, but depends on a trainable parameter}}
  %y = math.atan %x : tensor<1x3x8xf32>
  %loss, %count, %correct = model.head_loss %y, %w, %ids : (tensor<1x3x8xf32>, tensor<16x8xf32>, tensor<1x3xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>
}

// -----

// A gradient with respect to a result that has no derivative is an error.
model.parameter @e : tensor<16x4xf32> {file = "a", trainable}
model.parameter @w : tensor<16x4xf32> {file = "a"}
func.func @lse(%ids: tensor<1x4xi32> {model.input = "ids"}, %targets: tensor<1x4xi32> {model.input = "targets"}, %segments: tensor<1x4xi32> {model.input = "segments"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x4xi32>) attributes {model.batch = 1, model.length = 4} {
  %e = model.weight @e : tensor<16x4xf32>
  %w = model.weight @w : tensor<16x4xf32>
  %x = model.embedding %ids, %e : (tensor<1x4xi32>, tensor<16x4xf32>) -> tensor<1x4x4xf32>
  // expected-error @+1 {{has no derivative of its log-sum-exp, but a gradient reaches it}}
  %o, %lse = model.attention %x, %x, %x, %segments {heads = 4, kv_heads = 4, head_dim = 1, window = 0, scale = 1.0 : f64} : (tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4xi32>) -> (tensor<1x4x4xf32>, tensor<1x4x4xf32>)
  %y = model.add %o, %lse : tensor<1x4x4xf32>
  %loss, %count, %correct = model.head_loss %y, %w, %targets : (tensor<1x4x4xf32>, tensor<16x4xf32>, tensor<1x4xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x4xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x4xi32>
}
