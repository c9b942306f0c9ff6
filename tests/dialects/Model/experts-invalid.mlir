// SPDX-License-Identifier: MIT

// Violates the labelled constraints of the ops of MoE experts.
// RUN: qlora-opt %s --split-input-file --verify-diagnostics

func.func @route_c1(%l: tensor<2x3x4xf32>) {
  // expected-error @+1 {{(C1) expects f32 weights and i32 choices for the tokens of 'tensor<2x3x4xf32>', but got 'tensor<2x3x2xf32>' and 'tensor<2x3x1xi32>'}}
  %w, %c = model.route %l : (tensor<2x3x4xf32>) -> (tensor<2x3x2xf32>, tensor<2x3x1xi32>)
  return
}

// -----

func.func @route_c2(%l: tensor<2x3x4xf32>) {
  // expected-error @+1 {{(C2) expects at most 4 choices, one per expert, but got 5}}
  %w, %c = model.route %l : (tensor<2x3x4xf32>) -> (tensor<2x3x5xf32>, tensor<2x3x5xi32>)
  return
}

// -----

func.func @sort_c1(%c: tensor<2x3x2xi32>) {
  // expected-error @+1 {{(C1) expects i32 [B, T, k] four times and offsets [E + 1], but got}}
  %o, %p, %e, %s = model.sort_by_expert %c : (tensor<2x3x2xi32>) -> (tensor<2x3x2xi32>, tensor<2x6xi32>, tensor<2x3x2xi32>, tensor<5xi32>)
  return
}

// -----

func.func @sort_c2(%c: tensor<2x3x2xi32>) {
  // expected-error @+1 {{(C2) expects ranks that divide 4 experts, and own_offsets if ranks > 1, but got 3}}
  %o, %p, %e, %s, %w = model.sort_by_expert %c {ranks = 3 : i64} : (tensor<2x3x2xi32>) -> (tensor<2x3x2xi32>, tensor<2x3x2xi32>, tensor<2x3x2xi32>, tensor<5xi32>, tensor<2xi32>)
  return
}

// -----

func.func @gather_c1(%x: tensor<2x3x8xf32>, %o: tensor<2x3x2xi32>) {
  // expected-error @+1 {{(C1) expects [B, T, C] and [B, T, k, C] with i32 [B, T, k], but got}}
  %y = model.gather_rows %x, %o, %o : (tensor<2x3x8xf32>, tensor<2x3x2xi32>, tensor<2x3x2xi32>) -> tensor<2x3x1x8xf32>
  return
}

// -----

func.func @combine_c2(%x: tensor<2x3x2x8xf32>, %o: tensor<2x3x2xi32>, %w: tensor<2x3x2xbf16>) {
  // expected-error @+1 {{(C2) expects f32 weights like 'tensor<2x3x2xi32>', but got 'tensor<2x3x2xbf16>'}}
  %y = model.combine_rows %x, %o, %o weights %w : (tensor<2x3x2x8xf32>, tensor<2x3x2xi32>, tensor<2x3x2xi32>, tensor<2x3x2xbf16>) -> tensor<2x3x8xf32>
  return
}

// -----

func.func @grouped_c1(%x: tensor<2x3x2x8xf32>, %w: tensor<24x9xf32>, %s: tensor<5xi32>) {
  // expected-error @+1 {{(C1) expects x with 9 columns for 'tensor<24x9xf32>' in 4 groups, but got 'tensor<2x3x2x8xf32>'}}
  %y = model.grouped_linear %x, %w, %s : (tensor<2x3x2x8xf32>, tensor<24x9xf32>, tensor<5xi32>) -> tensor<2x3x2x6xf32>
  return
}

// -----

func.func @grouped_c2(%x: tensor<2x3x2x8xf32>, %w: tensor<24x8xf32>, %s: tensor<5xi32>) {
  // expected-error @+1 {{(C2) expects rows of 6 columns for 'tensor<2x3x2x8xf32>', but got 'tensor<2x3x2x24xf32>'}}
  %y = model.grouped_linear %x, %w, %s : (tensor<2x3x2x8xf32>, tensor<24x8xf32>, tensor<5xi32>) -> tensor<2x3x2x24xf32>
  return
}

// -----

func.func @grouped_c3(%x: tensor<2x3x2x8xf32>, %w: tensor<24x8xf32>, %s: tensor<5xi32>) {
  // expected-error @+1 {{(C3) expects init of type 'tensor<2x3x2x6xf32>'}}
  %y = model.grouped_linear %x, %w, %s init %x : (tensor<2x3x2x8xf32>, tensor<24x8xf32>, tensor<5xi32>, tensor<2x3x2x8xf32>) -> tensor<2x3x2x6xf32>
  return
}

// -----

func.func @grouped_c4(%x: tensor<2x3x2x8xf32>, %w: tensor<25x8xf32>, %s: tensor<5xi32>) {
  // expected-error @+1 {{(C4) expects i32 offsets of E + 1 groups that divide the weight, but got 'tensor<5xi32>' and 'tensor<25x8xf32>'}}
  %y = model.grouped_linear %x, %w, %s : (tensor<2x3x2x8xf32>, tensor<25x8xf32>, tensor<5xi32>) -> tensor<2x3x2x6xf32>
  return
}

// -----

func.func @grouped_c5(%x: tensor<2x3x2x8xf32>, %w: tensor<8x32x!model.quantized<nf4, 64, true>>, %s: tensor<5xi32>) {
  // expected-error @+1 {{(C5) expects a weight that is not quantized with groups_last}}
  %y = model.grouped_linear %x, %w, %s {groups_last} : (tensor<2x3x2x8xf32>, tensor<8x32x!model.quantized<nf4, 64, true>>, tensor<5xi32>) -> tensor<2x3x2x8xf32>
  return
}

// -----

func.func @transpose_c1(%x: tensor<2x3x8xf32>) {
  // expected-error @+1 {{(C1) expects a positive divisor of 8 and the type of x, but got 3 and 'tensor<2x3x8xf32>'}}
  %y = model.transpose_rows %x {inner = 3 : i64} : (tensor<2x3x8xf32>) -> tensor<2x3x8xf32>
  return
}

// -----

func.func @glu_c1(%x: tensor<2x3x8xf32>) {
  // expected-error @+1 {{(C1) expects a finite limit that is not negative}}
  %y = model.glu silu %x, %x {limit = -1.0 : f64} : tensor<2x3x8xf32>
  return
}

// -----

func.func @glu_c2(%x: tensor<2x3x8xf32>) {
  // expected-error @+1 {{(C2) expects silu with a slope, but got gelu}}
  %y = model.glu gelu %x, %x {slope = 2.0 : f64} : tensor<2x3x8xf32>
  return
}

// -----

func.func @router_probs_c1(%l: tensor<2x3x8xf32>, %s: tensor<2x3xi32>) {
  // expected-error @+1 {{(C1) expects the last dimension of 'tensor<2x3x8xf32>' in groups of 3}}
  %p = model.router_probs %l, %s {experts = 3 : i64} : (tensor<2x3x8xf32>, tensor<2x3xi32>) -> tensor<2x3x8xf32>
  return
}

// -----

func.func @router_probs_c2(%l: tensor<2x3x8xf32>, %s: tensor<2x3xi32>) {
  // expected-error @+1 {{(C2) expects a result of type 'tensor<2x3x8xf32>', but got 'tensor<2x3x8xbf16>'}}
  %p = model.router_probs %l, %s {experts = 4 : i64} : (tensor<2x3x8xf32>, tensor<2x3xi32>) -> tensor<2x3x8xbf16>
  return
}

// -----

func.func @column_sum_c1(%x: tensor<2x3x8xf32>) {
  // expected-error @+1 {{(C1) expects f32 [C] of rows that divide 'tensor<2x3x8xf32>', but got 'tensor<3xf32>'}}
  %y = model.column_sum %x : (tensor<2x3x8xf32>) -> tensor<3xf32>
  return
}

// -----

func.func @count_choices_c1(%c: tensor<2x3x4xi32>, %m: tensor<2x3x2xf32>) {
  // expected-error @+1 {{(C1) expects i32 [B, T, k], marks of that shape and f32 [E], but got 'tensor<2x3x4xi32>', 'tensor<2x3x2xf32>' and 'tensor<4xf32>'}}
  %y = model.count_choices %c, %m : (tensor<2x3x4xi32>, tensor<2x3x2xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @router_loss_c1(%s: tensor<4xf32>, %c: tensor<5xf32>) {
  // expected-error @+1 {{(C1) expects f32 [E] and a loss of f32 [1], but got 'tensor<4xf32>', 'tensor<5xf32>', 'tensor<4xf32>' and 'tensor<1xf32>'}}
  %slopes, %loss = model.router_loss %s, %c {coefficient = 0.1 : f64, chosen = 2 : i64} : (tensor<4xf32>, tensor<5xf32>) -> (tensor<4xf32>, tensor<1xf32>)
  return
}

// -----

func.func @router_loss_c2(%s: tensor<4xf32>) {
  // expected-error @+1 {{(C2) expects at least 1 choice, but got 0}}
  %slopes, %loss = model.router_loss %s, %s {coefficient = 0.1 : f64, chosen = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<1xf32>)
  return
}
