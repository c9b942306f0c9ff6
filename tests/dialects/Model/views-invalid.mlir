// SPDX-License-Identifier: MIT

// Violates the labelled constraints of views.

// RUN: qlora-opt %s --split-input-file --verify-diagnostics

func.func @split_c1(%x: tensor<2x4x8xf32>) {
  // expected-error @+1 {{(C1) expects parts that add up to 8 columns, but got 6}}
  %0:2 = model.split %x : (tensor<2x4x8xf32>) -> (tensor<2x4x4xf32>, tensor<2x4x2xf32>)
  return
}

// -----

func.func @split_c2(%x: tensor<2x4x8xf32>) {
  // expected-error @+1 {{(C2) expects column ranges of 'tensor<2x4x8xf32>', but got 'tensor<2x4x2xbf16>'}}
  %0:2 = model.split %x : (tensor<2x4x8xf32>) -> (tensor<2x4x6xf32>, tensor<2x4x2xbf16>)
  return
}

// -----

func.func @concat_c1(%x: tensor<2x4x8xf32>) {
  // expected-error @+1 {{(C1) expects parts that add up to 17 columns, but got 16}}
  %0 = model.concat %x, %x : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x17xf32>
  return
}

// -----

func.func @concat_c2(%x: tensor<2x4x8xf32>) {
  // expected-error @+1 {{(C2) expects column ranges of 'tensor<2x5x16xf32>', but got 'tensor<2x4x8xf32>'}}
  %0 = model.concat %x, %x : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x5x16xf32>
  return
}

// -----

func.func @gate_rows_c1(%x: tensor<2x3x8xf32>, %g: tensor<2x3x2xf32>) {
  // expected-error @+1 {{(C1) expects a gate of one number for each row of 'tensor<2x3x8xf32>', but got 'tensor<2x3x2xf32>'}}
  %0 = model.gate_rows %x, %g : (tensor<2x3x8xf32>, tensor<2x3x2xf32>) -> tensor<2x3x8xf32>
  return
}

// -----

func.func @gate_rows_c2(%x: tensor<2x3x8xf32>, %g: tensor<2x3x1xf32>) {
  // expected-error @+1 {{(C2) expects a result of type 'tensor<2x3x8xf32>'}}
  %0 = model.gate_rows %x, %g : (tensor<2x3x8xf32>, tensor<2x3x1xf32>) -> tensor<2x3x8xbf16>
  return
}

// -----

func.func @token_list_c1() {
  // expected-error @+1 {{(C1) expects an f32 result of as many elements as tokens, at least 1, but got 'tensor<3xf32>' for 2}}
  %0 = model.token_list {tokens = array<i64: 1, 2>} : tensor<3xf32>
  return
}

// -----

func.func @token_list_c2() {
  // expected-error @+1 {{(C2) expects different tokens in [0, 2^24), but got 7}}
  %0 = model.token_list {tokens = array<i64: 7, 7>} : tensor<2xf32>
  return
}

// -----

func.func @match_tokens_c1(%ids: tensor<2x3xi32>, %l: tensor<4xf32>) {
  // expected-error @+1 {{(C1) expects ids [B, T] i32 and rest of that shape in f32, but got 'tensor<2x3xi32>' and 'tensor<6xf32>'}}
  %0, %1 = model.match_tokens %ids, %l : (tensor<2x3xi32>, tensor<4xf32>) -> (tensor<2x3x4xf32>, tensor<6xf32>)
  return
}

// -----

func.func @match_tokens_c2(%ids: tensor<2x3xi32>, %l: tensor<4xf32>) {
  // expected-error @+1 {{(C2) expects matches of each id with each of 'tensor<4xf32>', but got 'tensor<2x3x5xf32>'}}
  %0, %1 = model.match_tokens %ids, %l : (tensor<2x3xi32>, tensor<4xf32>) -> (tensor<2x3x5xf32>, tensor<2x3xf32>)
  return
}

// -----

func.func @scale_rows_c1(%x: tensor<2x3x8xf32>, %f: tensor<2xf32>) {
  // expected-error @+1 {{(C1) expects a factor for each row of 'tensor<2x3x8xf32>', but got 'tensor<2xf32>'}}
  %0 = model.scale_rows %x, %f : (tensor<2x3x8xf32>, tensor<2xf32>) -> tensor<2x3x8xf32>
  return
}

// -----

func.func @scale_rows_c2(%x: tensor<2x3x8xf32>, %f: tensor<2x3xf32>) {
  // expected-error @+1 {{(C2) expects a result of type 'tensor<2x3x8xf32>'}}
  %0 = model.scale_rows %x, %f : (tensor<2x3x8xf32>, tensor<2x3xf32>) -> tensor<2x3x8xbf16>
  return
}
