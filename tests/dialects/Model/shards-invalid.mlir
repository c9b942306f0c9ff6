// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --split-input-file --verify-diagnostics

// expected-error @+1 {{(C8) expects pieces of a frozen parameter that have bytes, but got 64}}
model.parameter @a : tensor<4x4xf32> {init = "zero", trainable, piece = 64}

// -----

model.parameter @w : tensor<20x16xf32> {file = "m.safetensors"}
func.func @gather_c1() {
  // expected-error @+1 {{(C1) expects a parameter in pieces of the type 'tensor<20x16xf32>', but got @w}}
  %0 = model.gather_weight @w : tensor<20x16xf32>
  return
}

// -----

model.parameter @w : tensor<20x16xf32> {file = "m.safetensors", piece = 640}
func.func @piece_c1() {
  // expected-error @+1 {{(C1) expects a parameter in pieces of 'tensor<11x16xf32>', but got @w}}
  %0 = model.weight_piece @w : tensor<11x16xf32>
  return
}

// -----

func.func @all_gather_c1(%x: tensor<2x4x8xf32>) {
  // expected-error @+1 {{(C1) expects rows of one rank and of all of them, but got 'tensor<2x4x8xf32>' and 'tensor<5x4x8xf32>'}}
  %0 = model.all_gather %x : (tensor<2x4x8xf32>) -> tensor<5x4x8xf32>
  return
}

// -----

func.func @reduce_scatter_c2(%x: tensor<4x4xi32>) {
  // expected-error @+1 {{(C2) expects numbers to add up, but got 'tensor<4x4xi32>'}}
  %0 = model.reduce_scatter %x : (tensor<4x4xi32>) -> tensor<2x4xi32>
  return
}

// -----

func.func @head_part_c1(%h: tensor<2x4x16xf32>, %w: tensor<9x16xf32>, %t: tensor<2x4xi32>) {
  // expected-error @+1 {{(C1) expects pieces of a weight as wide as hidden, but got 'tensor<9x16xf32>' of 20 words}}
  %0 = model.head_part %h, %w, %t {words = 20, shards = 2, cap = 0.0} : (tensor<2x4x16xf32>, tensor<9x16xf32>, tensor<2x4xi32>) -> tensor<2x4x4xf32>
  return
}

// -----

func.func @head_part_c2(%h: tensor<2x4x16xf32>, %w: tensor<10x16xf32>, %t: tensor<2x4xi32>) {
  // expected-error @+1 {{(C2) expects targets, states and gradient of the rows of hidden}}
  %0 = model.head_part %h, %w, %t {words = 20, shards = 2, cap = 0.0} : (tensor<2x4x16xf32>, tensor<10x16xf32>, tensor<2x4xi32>) -> tensor<2x4x5xf32>
  return
}

// -----

func.func @head_merge_c1(%s: tensor<4x4x4xf32>, %t: tensor<2x4xi32>, %g: tensor<2x4x16xf32>, %w: tensor<10x16xf32>) {
  // expected-error @+1 {{(C1) expects a gradient, W and a summand, or none}}
  %0, %1, %2 = "model.head_merge"(%s, %t, %g, %w) {words = 20, piece = 10, shards = 2, cap = 0.0 : f64} : (tensor<4x4x4xf32>, tensor<2x4xi32>, tensor<2x4x16xf32>, tensor<10x16xf32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x4xi32>)
  return
}

// -----

func.func @head_merge_c2(%s: tensor<2x4x4xf32>, %t: tensor<2x4xi32>) {
  // expected-error @+1 {{(C2) expects states of 2 ranks and targets of their rows}}
  %0, %1, %2 = "model.head_merge"(%s, %t) {words = 20, piece = 10, shards = 2, cap = 0.0 : f64} : (tensor<2x4x4xf32>, tensor<2x4xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x4xi32>)
  return
}
