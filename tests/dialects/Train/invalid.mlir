// SPDX-License-Identifier: MIT

// Violates every labelled constraint (C1, C2, ...) of the train dialect.

// RUN: qlora-opt %s --split-input-file --verify-diagnostics

// expected-error @+1 {{(C1) expects one argument per input, but got 1 and 2}}
train.step accumulate batch 2 length 4 ["ids", "targets"] {
^bb0(%ids: tensor<2x4xi32>):
}

// -----

// expected-error @+1 {{(C2) expects an update without arguments}}
train.step update batch 0 length 0 ["ids"] {
^bb0(%ids: tensor<2x4xi32>):
}

// -----

model.parameter @a : tensor<8x64xf32> {init = "zero", trainable}
func.func @accumulate_c1(%g: tensor<8x32xf32>) {
  // expected-error @+1 {{(C1) expects an f32 gradient for 'tensor<8x64xf32>', but got 'tensor<8x32xf32>'}}
  train.accumulate @a, %g : tensor<8x32xf32>
  return
}

// -----

model.parameter @a : tensor<8x64xf32> {init = "zero", trainable}
func.func @accumulate_c1_dynamic(%g: tensor<?x64xf32>) {
  // expected-error @+1 {{(C1) expects an f32 gradient for 'tensor<8x64xf32>', but got 'tensor<?x64xf32>'}}
  train.accumulate @a, %g : tensor<?x64xf32>
  return
}

// -----

model.parameter @w : tensor<8x64xf32> {file = "a"}
func.func @accumulate_c2(%g: tensor<8x64xf32>) {
  // expected-error @+1 {{(C2) expects a trainable parameter, but @w is not}}
  train.accumulate @w, %g : tensor<8x64xf32>
  return
}

// -----

func.func @accumulate_of_what(%g: tensor<8x64xf32>) {
  // expected-error @+1 {{refers to @a, which is not a model.parameter}}
  train.accumulate @a, %g : tensor<8x64xf32>
  return
}

// -----

func.func @result_c1(%x: tensor<1xf32>) {
  // expected-error @+1 {{(C1) does not know the result 'accuracy'}}
  train.result "accuracy", %x : tensor<1xf32>
  return
}

// -----

func.func @decode_c1(%w: tensor<8x64x!model.quantized<nf4, 64, true>>) {
  // expected-error @+1 {{(C1) expects one shape, but got 'tensor<8x64x!model.quantized<nf4, 64, true>>' and 'tensor<64x8xf32>'}}
  %0 = train.decode %w : (tensor<8x64x!model.quantized<nf4, 64, true>>) -> tensor<64x8xf32>
  return
}

// -----

func.func @decode_c2(%w: tensor<8x64x!model.quantized<nf4, 64, true>>) {
  // expected-error @+1 {{(C2) expects a result that is not quantized}}
  %0 = train.decode %w : (tensor<8x64x!model.quantized<nf4, 64, true>>) -> tensor<8x64x!model.quantized<nf4, 64, true>>
  return
}

// -----

func.func @encode_rows_c1(%x: tensor<2x4x64xf32>) {
  // expected-error @+1 {{(C1) expects codes in i8 of the shape of 'tensor<2x4x64xf32>', but got 'tensor<2x4x64xbf16>'}}
  %0, %1 = train.encode_rows %x : (tensor<2x4x64xf32>) -> (tensor<2x4x64xbf16>, tensor<2x4x1xf32>)
  return
}

// -----

func.func @encode_rows_c2(%x: tensor<2x4x64xf32>) {
  // expected-error @+1 {{(C2) expects one f32 scale for each row of 'tensor<2x4x64xf32>', but got 'tensor<2x64x1xf32>'}}
  %0, %1 = train.encode_rows %x : (tensor<2x4x64xf32>) -> (tensor<2x4x64xi8>, tensor<2x64x1xf32>)
  return
}

// -----

func.func @decode_rows_c1(%c: tensor<2x4x64xi8>, %s: tensor<2x4x1xf32>) {
  // expected-error @+1 {{(C1) expects codes in i8 of the shape of 'tensor<2x4x32xf32>', but got 'tensor<2x4x64xi8>'}}
  %0 = train.decode_rows %c, %s : (tensor<2x4x64xi8>, tensor<2x4x1xf32>) -> tensor<2x4x32xf32>
  return
}

// -----

func.func @decode_rows_c2(%c: tensor<2x4x64xi8>, %s: tensor<2x4x1xbf16>) {
  // expected-error @+1 {{(C2) expects one f32 scale for each row of 'tensor<2x4x64xf32>', but got 'tensor<2x4x1xbf16>'}}
  %0 = train.decode_rows %c, %s : (tensor<2x4x64xi8>, tensor<2x4x1xbf16>) -> tensor<2x4x64xf32>
  return
}

// -----

func.func @left_by_codes_c1(%x: tensor<2x4x32xf32>, %c: tensor<2x4x64xi8>, %s: tensor<2x4x1xf32>) {
  // expected-error @+1 {{(C1) expects codes in i8 of the shape of 'tensor<2x4x32xf32>', but got 'tensor<2x4x64xi8>'}}
  %0 = train.left_by_codes %x, %c, %s : (tensor<2x4x32xf32>, tensor<2x4x64xi8>, tensor<2x4x1xf32>) -> tensor<2x4x32xf32>
  return
}

// -----

func.func @linear_weight_grad_c1(%dy: tensor<2x4x8xf32>, %x: tensor<2x4x64xf32>) {
  // expected-error @+1 {{(C1) expects an f32 result of 8x64, but got 'tensor<8x64xbf16>'}}
  %0 = train.linear_weight_grad %dy, %x {scale = 1.0 : f64} : (tensor<2x4x8xf32>, tensor<2x4x64xf32>) -> tensor<8x64xbf16>
  return
}

// -----

// AdamW is a row op: the shapes of its operands must match their maps.
func.func @adamw_r1(%x: tensor<2x1024xf32>, %y: tensor<1x1024xf32>, %s: tensor<1xf32>) {
  // expected-error @+1 {{(R1) operand 1 is 'tensor<1x1024xf32>', but 2 rows of 1024 do not read all of it as #model.map<full>}}
  %0, %1, %2 = train.adamw %x, %y, %x, %x, %s : (tensor<2x1024xf32>, tensor<1x1024xf32>, tensor<2x1024xf32>, tensor<2x1024xf32>, tensor<1xf32>) -> (tensor<2x1024xf32>, tensor<2x1024xf32>, tensor<2x1024xf32>)
  return
}

// -----

// expected-error @+1 {{(C3) does not know the input 'mask'; there are ids, targets, positions, segments}}
train.step accumulate batch 2 length 4 ["ids", "mask"] {
^bb0(%ids: tensor<2x4xi32>, %mask: tensor<2x4xi32>):
}

// -----

// expected-error @+1 {{(C3) has two arguments for the input 'ids'}}
train.step accumulate batch 2 length 4 ["ids", "ids"] {
^bb0(%ids: tensor<2x4xi32>, %again: tensor<2x4xi32>):
}

// -----

func.func @result_c2(%x: tensor<1xf32>) {
  // expected-error @+1 {{(C2) expects one of loss_sum, label_count, router_loss, chosen_rewards, rejected_rewards, right_pairs, chosen_logps, rejected_logps, chosen_count, divergence, log_odds, chosen_loss, odds_loss to accumulate, but got 'grad_norm'}}
  train.result "grad_norm", %x {accumulate} : tensor<1xf32>
  return
}

// -----

train.step accumulate batch 2 length 4 ["ids"] {
^bb0(%ids: tensor<2x4xi32>):
  %x = model.rows() attributes {columns = 8 : i64, maps = []} : () -> tensor<2x4x8xf32> {
    %0 = model.row_constant [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0] : tensor<8xf32>
    model.row_yield %0 : tensor<8xf32>
  }
  // expected-note @+1 {{here}}
  %y = model.add %x, %x {phase = #model.phase<recomputed>} : tensor<2x4x8xf32>
  %z = model.add %y, %y {phase = #model.phase<backward>} : tensor<2x4x8xf32>
  // expected-error @+1 {{(C4) is a forward op after the start of the backward}}
  %w = model.add %z, %z : tensor<2x4x8xf32>
}

// -----

train.step evaluate batch 2 length 4 ["ids"] {
^bb0(%ids: tensor<2x4xi32>):
  // expected-error @+1 {{(C5) expects a train.step accumulate around a backward op}}
  %x = model.rows() attributes {columns = 8 : i64, maps = [], phase = #model.phase<recomputed>} : () -> tensor<2x4x8xf32> {
    %0 = model.row_constant [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0] : tensor<8xf32>
    model.row_yield %0 : tensor<8xf32>
  }
}

// -----

model.parameter @w : tensor<8x64xf32> {init = "zero", trainable, piece = 1024}
train.step accumulate batch 1 length 4 [] {
  %w = model.gather_weight @w : tensor<8x64xf32>
  // expected-error @+1 {{(C1) expects the f32 gradient of a trainable parameter, and its piece, but got 'tensor<8x64xf32>' and 'tensor<128xf32>' for @w}}
  %p = train.scatter_gradient @w, %w : (tensor<8x64xf32>) -> tensor<128xf32>
  train.accumulate @w, %p : tensor<128xf32>
}

// -----

func.func @copy_to_host_c1(%x: tensor<8x64xf32>) {
  // expected-error @+1 {{(C1) expects behind of at least 0, but got -1}}
  %h = train.copy_to_host %x behind -1 : tensor<8x64xf32>
  return
}

// -----

func.func @copy_from_host_c1(%x: tensor<8x64xf32>) {
  // expected-error @+1 {{(C1) expects the result of train.copy_to_host}}
  %y = train.copy_from_host %x : tensor<8x64xf32>
  return
}
