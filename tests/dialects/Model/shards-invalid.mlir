// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --split-input-file --verify-diagnostics

// expected-error @+1 {{(C8) expects a positive piece, and if trainable a multiple of 64, but got 32}}
model.parameter @a : tensor<4x4xf32> {init = "zero", trainable, piece = 32}

// -----

// expected-error @+1 {{(C11) expects a frozen parameter with on_host}}
model.parameter @a : tensor<4x4xf32> {init = "zero", trainable, on_host}

// -----

model.parameter @f : tensor<20x16xbf16> {file = "m.safetensors", piece = 640}
func.func @gather_rounded_c1() {
  // expected-error @+1 {{(C1) expects a parameter with a piece or on_host, of type 'tensor<20x16xbf16>', but got @f}}
  %0 = model.gather_weight @f {rounded} : tensor<20x16xbf16>
  return
}

// -----

model.parameter @w : tensor<20x16xf32> {file = "m.safetensors"}
func.func @gather_c1() {
  // expected-error @+1 {{(C1) expects a parameter with a piece or on_host, of type 'tensor<20x16xf32>', but got @w}}
  %0 = model.gather_weight @w : tensor<20x16xf32>
  return
}

// -----

model.parameter @w : tensor<20x16xf32> {file = "m.safetensors", piece = 640}
func.func @piece_c1() {
  // expected-error @+1 {{(C1) expects a parameter with a piece of 'tensor<11x16xf32>', but got @w}}
  %0 = model.weight_piece @w : tensor<11x16xf32>
  return
}

// -----

func.func @all_gather_c1(%x: tensor<2x4x8xf32>) {
  // expected-error @+1 {{(C1) expects rows of one rank and of several ranks, but got 'tensor<2x4x8xf32>' and 'tensor<5x4x8xf32>'}}
  %0 = model.all_gather %x : (tensor<2x4x8xf32>) -> tensor<5x4x8xf32>
  return
}

// -----

func.func @reduce_scatter_c2(%x: tensor<4x4xi32>) {
  // expected-error @+1 {{(C2) expects float elements, but got 'tensor<4x4xi32>'}}
  %0 = model.reduce_scatter %x : (tensor<4x4xi32>) -> tensor<2x4xi32>
  return
}

// -----

func.func @head_part_c1(%h: tensor<2x4x16xf32>, %w: tensor<9x16xf32>, %t: tensor<2x4xi32>) {
  // expected-error @+1 {{(C1) expects pieces of a weight as wide as hidden, but got 'tensor<9x16xf32>' of 20 tokens}}
  %0 = model.head_part %h, %w, %t {words = 20, shards = 2, cap = 0.0} : (tensor<2x4x16xf32>, tensor<9x16xf32>, tensor<2x4xi32>) -> tensor<2x4x4xf32>
  return
}

// -----

func.func @head_part_c2(%h: tensor<2x4x16xf32>, %w: tensor<10x16xf32>, %t: tensor<2x4xi32>) {
  // expected-error @+1 {{(C2) expects targets, states and gradient with the rows of hidden}}
  %0 = model.head_part %h, %w, %t {words = 20, shards = 2, cap = 0.0} : (tensor<2x4x16xf32>, tensor<10x16xf32>, tensor<2x4xi32>) -> tensor<2x4x5xf32>
  return
}

// -----

func.func @head_part_c3(%h: tensor<2x4x16xf32>, %w: tensor<10x16xf32>, %t: tensor<2x4xi32>) {
  // expected-error @+1 {{(C3) expects label_smoothing or a cap, not both}}
  %0 = model.head_part %h, %w, %t {words = 20, shards = 2, cap = 3.0, label_smoothing = 0.1 : f64} : (tensor<2x4x16xf32>, tensor<10x16xf32>, tensor<2x4xi32>) -> tensor<2x4x5xf32>
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

// -----

// expected-error @+1 {{(C9) expects equal slices of the segments of a frozen parameter, but got #model.slice<2, 0, [7]> for 'tensor<4x4xf32>'}}
model.parameter @s : tensor<4x4xf32> {file = "m.safetensors", slice = #model.slice<2, 0, [7]>}

// -----

// expected-error @+1 {{(C9) expects equal slices}}
model.parameter @s : tensor<4x4xf32> {init = "zero", trainable, slice = #model.slice<2, 0, [8]>}

// -----

model.parameter @w : tensor<4x4xbf16> {file = "m.safetensors"}
func.func @part_c3() {
  // expected-error @+1 {{(C3) expects a part of an f32 parameter, but got #model.part<2, 0, 0, 4, 4> of 'tensor<4x4xbf16>'}}
  %0 = model.weight @w {part = #model.part<2, 0, 0, 4, 4>} : tensor<2x4xbf16>
  return
}

// -----

model.parameter @w : tensor<4x4xf32> {init = "zero", trainable}
func.func @part_of_more() {
  // expected-error @+1 {{(C3) expects a part of an f32 parameter, but got #model.part<2, 1, 2, 4, 4> of 'tensor<4x4xf32>'}}
  %0 = model.weight @w {part = #model.part<2, 1, 2, 4, 4>} : tensor<4x2xf32>
  return
}

// -----

// expected-note @+1 {{the parameter}}
model.parameter @w : tensor<4x4xf32> {init = "zero", trainable}
func.func @part_type() {
  // expected-error @+1 {{(C1) has type 'tensor<4x4xf32>', but the parameter is 'tensor<4x4xf32>'}}
  %0 = model.weight @w {part = #model.part<2, 0, 0, 4, 4>} : tensor<4x4xf32>
  return
}

// -----

func.func @all_to_all_c1(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{(C1) expects as many elements of one type, but got 'tensor<4x4xf32>' and 'tensor<4x5xf32>'}}
  %0 = model.all_to_all %x : (tensor<4x4xf32>) -> tensor<4x5xf32>
  return
}

// -----

func.func @swap_blocks_c1(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{(C1) expects as many elements of one type, divisible by the blocks, but got 'tensor<4x4xf32>' and 'tensor<4x4xf32>' as 3 x 2}}
  %0 = model.swap_blocks %x {first = 3, second = 2} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @swap_blocks_c2(%x: tensor<4x6xf32>) {
  // expected-error @+1 {{(C2) expects runs of 4 to divide rows of 6, or the reverse}}
  %0 = model.swap_blocks %x {first = 3, second = 2} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  return
}
