// SPDX-License-Identifier: MIT

// Violates the labelled constraints (C1, C2, ...) of ops of the model dialect.

// RUN: qlora-opt %s --split-input-file --verify-diagnostics

// Dimensions must be positive.
// expected-error @+1 {{failed to satisfy constraint: type attribute of a ranked tensor of f32, bf16, f16, i32, i8, ui8 or 4-bit numbers with positive dimensions}}
model.parameter @w : tensor<8x0xf32> {file = "a"}

// -----

// 2^17 cubed is more than 2^48 elements.
// expected-error @+1 {{with positive dimensions}}
model.parameter @w : tensor<131072x131072x131072xf32> {file = "a"}

// -----

func.func @element(%x: tensor<2x4x8xf64>) {
  // expected-error @+1 {{'model.add' op operand #0 must be a ranked tensor of f32, bf16 or f16 with positive dimensions, but got 'tensor<2x4x8xf64>'}}
  %0 = model.add %x, %x : tensor<2x4x8xf64>
  return
}

// -----

// expected-error @+1 {{expects a power of two from 64 to 4096 as block, but got 48}}
model.parameter @w : tensor<64x64x!model.quantized<nf4, 48, true>> {file = "a"}

// -----

// expected-error @+1 {{expects a group of at least 1 row, but got 0}}
func.func private @map() attributes {map = #model.map<scalar, 0>}

// -----

//===----------------------------------------------------------------------===//
// parameter, weight
//===----------------------------------------------------------------------===//

// expected-error @+1 {{(C1) expects a static shape of at most 4 dimensions, but got 'tensor<?x8xf32>'}}
model.parameter @w : tensor<?x8xf32> {file = "a"}

// -----

// expected-error @+1 {{(C1) expects a static shape of at most 4 dimensions, but got 'tensor<1x1x1x1x8xf32>'}}
model.parameter @w : tensor<1x1x1x1x8xf32> {file = "a"}

// -----

// expected-error @+1 {{(C2) expects either a file or an init}}
model.parameter @w : tensor<8xf32>

// -----

// expected-error @+1 {{(C2) expects either a file or an init}}
model.parameter @w : tensor<8xf32> {file = "a", init = "zero"}

// -----

// expected-error @+1 {{(C2) expects zero, kaiming, gaussian, normal, factor, computed or rows as init, but got 'ones'}}
model.parameter @w : tensor<8xf32> {init = "ones"}

// -----

// expected-error @+1 {{(C3) expects part_names and part_rows together}}
model.parameter @w : tensor<8x2xf32> {init = "zero", part_names = ["a"]}

// -----

// expected-error @+1 {{(C3) expects parts that add up to 8 rows, but got 6 in 2 for 2 names}}
model.parameter @w : tensor<8x2xf32> {init = "zero", part_names = ["a", "b"], part_rows = array<i64: 4, 2>}

// -----

// expected-error @+1 {{(C3) expects parts that add up to 8 rows, but got 8 in 2 for 1 names}}
model.parameter @w : tensor<8x2xf32> {init = "zero", part_names = ["a"], part_rows = array<i64: 4, 4>}

// -----

// expected-error @+1 {{(C3) expects each part to have from 1 to 8 rows}}
model.parameter @w : tensor<8x2xf32> {init = "zero", part_names = ["a", "b"], part_rows = array<i64: 9, -1>}

// -----

// expected-error @+1 {{(C3) expects quantized parts to be equal and quantized when loaded}}
model.parameter @w : tensor<8x64x!model.quantized<nf4, 64, true>> {file = "a", part_names = ["a", "b"], part_rows = array<i64: 4, 4>}

// -----

// expected-error @+1 {{(C4) expects a trainable parameter in f32, but got 'bf16'}}
model.parameter @w : tensor<8xbf16> {init = "zero", trainable}

// -----

// expected-error @+1 {{(C5) expects a type of few bits as quantized, but got 'bf16'}}
model.parameter @w : tensor<8xbf16> {file = "a", quantized = bf16}

// -----

// expected-error @+1 {{(C5) expects a type of few bits or quantized with stored_quantized}}
model.parameter @w : tensor<8xbf16> {file = "a", stored_quantized}

// -----

// expected-error @+1 {{(C5) expects f32, bf16 or f16 as file_type, but got 'i64'}}
model.parameter @w : tensor<8xbf16> {file = "a", file_type = i64}

// -----

// expected-error @+1 {{(C6) expects transposed with quantized and two dimensions, and without stored_quantized}}
model.parameter @w : tensor<8x8xf32> {file = "a", transposed}

// -----

// expected-note @+1 {{the parameter}}
model.parameter @w : tensor<8xbf16> {file = "a"}
func.func @weight() {
  // expected-error @+1 {{(C1) has type 'tensor<8xf32>', but the parameter is 'tensor<8xbf16>'}}
  %0 = model.weight @w : tensor<8xf32>
  return
}

// -----

model.parameter @w : tensor<8xf32> {file = "a"}
func.func @rounded() {
  // expected-error @+1 {{(C2) expects bf16 values of a trainable f32 parameter, but @w is 'tensor<8xf32>' and the result 'tensor<8xbf16>'}}
  %0 = model.weight @w {rounded} : tensor<8xbf16>
  return
}

// -----

func.func private @w()
func.func @weight_of_what() {
  // expected-error @+1 {{refers to @w, which is not a model.parameter}}
  %0 = model.weight @w : tensor<8xf32>
  return
}

// -----

//===----------------------------------------------------------------------===//
// embedding
//===----------------------------------------------------------------------===//

func.func @embedding_c1(%ids: tensor<2x3xi32>, %table: tensor<9x8xf32>) {
  // expected-error @+1 {{(C1) expects ids of type [B, T] i32}}
  %0 = model.embedding %ids, %table : (tensor<2x3xi32>, tensor<9x8xf32>) -> tensor<2x4x8xf32>
  return
}

// -----

func.func @embedding_c2(%ids: tensor<2x4xi32>, %table: tensor<9x8xf32>) {
  // expected-error @+1 {{(C2) expects a result as wide as the table, but got 16}}
  %0 = model.embedding %ids, %table : (tensor<2x4xi32>, tensor<9x8xf32>) -> tensor<2x4x16xf32>
  return
}

// -----

func.func @embedding_c2_turned(%ids: tensor<2x4xi32>, %table: tensor<9x8xf32>) {
  // expected-error @below {{(C2) expects a result as wide as the table, but got 8}}
  %0 = model.embedding %ids, %table layout out_in : (tensor<2x4xi32>, tensor<9x8xf32>) -> tensor<2x4x8xf32>
  return
}

// -----

func.func @embedding_c3(%ids: tensor<2x4xi32>, %table: tensor<9x64x!model.quantized<nf4, 64, true>>) {
  // expected-error @+1 {{(C3) expects a table that is not quantized}}
  %0 = model.embedding %ids, %table : (tensor<2x4xi32>, tensor<9x64x!model.quantized<nf4, 64, true>>) -> tensor<2x4x64xf32>
  return
}

// -----

//===----------------------------------------------------------------------===//
// linear
//===----------------------------------------------------------------------===//

func.func @adapted_norm_c1(%w: tensor<16x8xf32>, %a: tensor<2x8xf32>, %b: tensor<16x3xf32>) {
  // expected-error @+1 {{(C1) expects A [rank, 8], B [16, rank] and 16 norms, but got 'tensor<2x8xf32>', 'tensor<16x3xf32>' and 'tensor<16xf32>'}}
  %0 = model.adapted_norm %w, %a, %b {scale = 1.0 : f64} : (tensor<16x8xf32>, tensor<2x8xf32>, tensor<16x3xf32>) -> tensor<16xf32>
  return
}

// -----

func.func @adapted_norm_c1_turned(%w: tensor<16x8xf32>, %a: tensor<2x8xf32>, %b: tensor<16x2xf32>) {
  // expected-error @+1 {{(C1) expects A [rank, 16], B [8, rank] and 8 norms}}
  %0 = model.adapted_norm %w layout in_out, %a, %b {scale = 1.0 : f64} : (tensor<16x8xf32>, tensor<2x8xf32>, tensor<16x2xf32>) -> tensor<16xf32>
  return
}

// -----

func.func @adapted_norm_c2(%w: tensor<16x8xf32>, %a: tensor<2x8xbf16>, %b: tensor<16x2xf32>) {
  // expected-error @+1 {{(C2) expects f32, but got 'tensor<2x8xbf16>'}}
  %0 = model.adapted_norm %w, %a, %b {scale = 1.0 : f64} : (tensor<16x8xf32>, tensor<2x8xbf16>, tensor<16x2xf32>) -> tensor<16xf32>
  return
}

// -----

func.func @adapted_norm_c3(%w: tensor<16x8xf32>, %a: tensor<2x8xf32>, %b: tensor<16x2xf32>) {
  // expected-error @+1 {{(C3) expects weights as operands}}
  %0 = model.adapted_norm %w, %a, %b {scale = 1.0 : f64} : (tensor<16x8xf32>, tensor<2x8xf32>, tensor<16x2xf32>) -> tensor<16xf32>
  return
}

// -----

func.func @linear_c1(%x: tensor<2x4x8xf32>, %w: tensor<16x9xf32>) {
  // expected-error @+1 {{(C1) expects x as wide as the weight's in, but got 8 and 'tensor<16x9xf32>', out_in}}
  %0 = model.linear %x, %w : (tensor<2x4x8xf32>, tensor<16x9xf32>) -> tensor<2x4x16xf32>
  return
}

// -----

func.func @linear_c1_turned(%x: tensor<2x4x8xf32>, %w: tensor<16x8xf32>) {
  // expected-error @+1 {{(C1) expects x as wide as the weight's in, but got 8 and 'tensor<16x8xf32>', in_out}}
  %0 = model.linear %x, %w layout in_out : (tensor<2x4x8xf32>, tensor<16x8xf32>) -> tensor<2x4x8xf32>
  return
}

// -----

func.func @linear_c2_turned(%x: tensor<2x4x8xf32>, %w: tensor<8x16xf32>) {
  // expected-error @+1 {{(C2) expects a result as wide as the weight's out, but got 8 and 'tensor<8x16xf32>', in_out}}
  %0 = model.linear %x, %w layout in_out : (tensor<2x4x8xf32>, tensor<8x16xf32>) -> tensor<2x4x8xf32>
  return
}

// -----

func.func @linear_c2(%x: tensor<2x4x8xf32>, %w: tensor<16x8xf32>) {
  // expected-error @+1 {{(C2) expects a result as wide as the weight's out, but got 8 and 'tensor<16x8xf32>', out_in}}
  %0 = model.linear %x, %w : (tensor<2x4x8xf32>, tensor<16x8xf32>) -> tensor<2x4x8xf32>
  return
}

// -----

func.func @linear_c2_tokens(%x: tensor<2x4x8xf32>, %w: tensor<16x8xf32>) {
  // expected-error @+1 {{(C2) expects a result for the tokens of x, but got 'tensor<2x5x16xf32>' for 'tensor<2x4x8xf32>'}}
  %0 = model.linear %x, %w : (tensor<2x4x8xf32>, tensor<16x8xf32>) -> tensor<2x5x16xf32>
  return
}

// -----

func.func @linear_c3(%x: tensor<2x4x8xf32>, %w: tensor<16x8xf32>, %y: tensor<2x4x16xbf16>) {
  // expected-error @+1 {{(C3) expects init of type 'tensor<2x4x16xf32>'}}
  %0 = model.linear %x, %w init %y : (tensor<2x4x8xf32>, tensor<16x8xf32>, tensor<2x4x16xbf16>) -> tensor<2x4x16xf32>
  return
}

// -----

func.func @linear_c4_format(%x: tensor<2x4x8xf32>, %w: tensor<16x8xf32>) {
  // expected-error @+1 {{(C4) expects an integer weight, out_in, with int8_threshold, but got 'tensor<16x8xf32>', out_in}}
  %0 = model.linear %x, %w {int8_threshold = 6.0} : (tensor<2x4x8xf32>, tensor<16x8xf32>) -> tensor<2x4x16xf32>
  return
}

// -----

func.func @linear_c4_threshold(%x: tensor<2x4x8xf32>, %w: tensor<16x8x!model.quantized<llm_int8, 8, false>>) {
  // expected-error @+1 {{(C4) expects an int8_threshold that is neither negative nor infinite, but got -1}}
  %0 = model.linear %x, %w {int8_threshold = -1.0} : (tensor<2x4x8xf32>, tensor<16x8x!model.quantized<llm_int8, 8, false>>) -> tensor<2x4x16xf32>
  return
}

// -----

//===----------------------------------------------------------------------===//
// attention
//===----------------------------------------------------------------------===//

func.func @attention_c1(%q: tensor<2x4x24xf32>, %k: tensor<2x4x16xf32>, %s: tensor<2x4xi32>) {
  // expected-error @+1 {{(C1) expects heads to be a multiple of kv_heads, but got 3 and 2, of 8}}
  %0, %1 = model.attention %q, %k, %k, %s {heads = 3, kv_heads = 2, head_dim = 8, window = 0, scale = 1.0 : f64} : (tensor<2x4x24xf32>, tensor<2x4x16xf32>, tensor<2x4x16xf32>, tensor<2x4xi32>) -> (tensor<2x4x24xf32>, tensor<2x3x4xf32>)
  return
}

// -----

func.func @attention_c2(%q: tensor<2x4x24xf32>, %k: tensor<2x4x16xf32>, %s: tensor<2x4xi32>) {
  // expected-error @+1 {{(C2) expects widths of 4 and 2 heads of 8}}
  %0, %1 = model.attention %q, %k, %k, %s {heads = 4, kv_heads = 2, head_dim = 8, window = 0, scale = 1.0 : f64} : (tensor<2x4x24xf32>, tensor<2x4x16xf32>, tensor<2x4x16xf32>, tensor<2x4xi32>) -> (tensor<2x4x24xf32>, tensor<2x4x4xf32>)
  return
}

// -----

func.func @attention_c2_tokens(%q: tensor<2x4x8xf32>, %k: tensor<2x3x8xf32>, %s: tensor<2x4xi32>) {
  // expected-error @+1 {{(C2) expects the tokens of q, 'tensor<2x4x8xf32>', but got 'tensor<2x3x8xf32>'}}
  %0, %1 = model.attention %q, %k, %k, %s {heads = 1, kv_heads = 1, head_dim = 8, window = 0, scale = 1.0 : f64} : (tensor<2x4x8xf32>, tensor<2x3x8xf32>, tensor<2x3x8xf32>, tensor<2x4xi32>) -> (tensor<2x4x8xf32>, tensor<2x1x4xf32>)
  return
}

// -----

func.func @attention_c3(%q: tensor<2x4x8xf32>, %s: tensor<2x4xf32>) {
  // expected-error @+1 {{(C3) expects segments of type [B, T] i32}}
  %0, %1 = model.attention %q, %q, %q, %s {heads = 1, kv_heads = 1, head_dim = 8, window = 0, scale = 1.0 : f64} : (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4xf32>) -> (tensor<2x4x8xf32>, tensor<2x1x4xf32>)
  return
}

// -----

func.func @attention_c4(%q: tensor<2x4x8xf32>, %s: tensor<2x4xi32>) {
  // expected-error @+1 {{(C4) expects the log-sum-exp as f32 [B, heads, T], but got 'tensor<2x1x4xbf16>'}}
  %0, %1 = model.attention %q, %q, %q, %s {heads = 1, kv_heads = 1, head_dim = 8, window = 0, scale = 1.0 : f64} : (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4xi32>) -> (tensor<2x4x8xf32>, tensor<2x1x4xbf16>)
  return
}

// -----

func.func @attention_c4_heads(%q: tensor<2x4x8xf32>, %s: tensor<2x4xi32>) {
  // expected-error @+1 {{(C4) expects the log-sum-exp as f32 [B, heads, T], but got 'tensor<2x4x1xf32>'}}
  %0, %1 = model.attention %q, %q, %q, %s {heads = 1, kv_heads = 1, head_dim = 8, window = 0, scale = 1.0 : f64} : (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4xi32>) -> (tensor<2x4x8xf32>, tensor<2x4x1xf32>)
  return
}

// -----

func.func @attention_c5(%q: tensor<2x4x8xf32>, %s: tensor<2x4xi32>) {
  // expected-error @+1 {{(C5) expects a window of at least 0, but got -1}}
  %0, %1 = model.attention %q, %q, %q, %s {heads = 1, kv_heads = 1, head_dim = 8, window = -1, scale = 1.0 : f64} : (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4xi32>) -> (tensor<2x4x8xf32>, tensor<2x1x4xf32>)
  return
}

// -----

func.func @attention_c5_cap(%q: tensor<2x4x8xf32>, %s: tensor<2x4xi32>) {
  // expected-error @+1 {{(C5) expects a finite cap of at least 0}}
  %0, %1 = model.attention %q, %q, %q, %s {heads = 1, kv_heads = 1, head_dim = 8, window = 0, scale = 1.0 : f64, cap = -1.0 : f64} : (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4xi32>) -> (tensor<2x4x8xf32>, tensor<2x1x4xf32>)
  return
}

// -----

func.func @attention_c6(%q: tensor<2x4x8xf32>, %s: tensor<2x4xi32>, %sinks: tensor<3xf32>) {
  // expected-error @+1 {{(C6) expects sinks of type f32 [1], but got 'tensor<3xf32>'}}
  %0, %1 = model.attention %q, %q, %q, %s sinks %sinks {heads = 1, kv_heads = 1, head_dim = 8, window = 0, scale = 1.0 : f64} : (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4xi32>, tensor<3xf32>) -> (tensor<2x4x8xf32>, tensor<2x1x4xf32>)
  return
}

// -----

//===----------------------------------------------------------------------===//
// head_loss
//===----------------------------------------------------------------------===//

func.func @head_loss_c1(%h: tensor<2x4x8xf32>, %w: tensor<16x9xf32>, %t: tensor<2x4xi32>) {
  // expected-error @+1 {{(C1) expects a weight as wide as hidden, but got 'tensor<16x9xf32>' and 8}}
  %0, %1, %2 = model.head_loss %h, %w, %t : (tensor<2x4x8xf32>, tensor<16x9xf32>, tensor<2x4xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x4xi32>)
  return
}

// -----

func.func @head_loss_c2(%h: tensor<2x4x8xf32>, %w: tensor<16x8xf32>, %t: tensor<8xi32>) {
  // expected-error @+1 {{(C2) expects targets of type [B, T] i32}}
  %0, %1, %2 = model.head_loss %h, %w, %t : (tensor<2x4x8xf32>, tensor<16x8xf32>, tensor<8xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x4xi32>)
  return
}

// -----

func.func @head_loss_c3(%h: tensor<2x4x64xf32>, %w: tensor<16x64x!model.quantized<nf4, 64, true>>, %t: tensor<2x4xi32>) {
  // expected-error @+1 {{(C3) expects a weight that is not quantized}}
  %0, %1, %2 = model.head_loss %h, %w, %t : (tensor<2x4x64xf32>, tensor<16x64x!model.quantized<nf4, 64, true>>, tensor<2x4xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x4xi32>)
  return
}

// -----

func.func @head_loss_c4(%h: tensor<2x4x8xf32>, %w: tensor<16x8xf32>, %t: tensor<2x4xi32>) {
  // expected-error @+1 {{(C4) expects results of type 'tensor<1xf32>' or 'tensor<2xf32>' twice and [B, T] i32}}
  %0, %1, %2 = model.head_loss %h, %w, %t : (tensor<2x4x8xf32>, tensor<16x8xf32>, tensor<2x4xi32>) -> (tensor<2xf32>, tensor<1xf32>, tensor<2x4xi32>)
  return
}

// -----

func.func @head_loss_c6(%h: tensor<2x4x8xf32>, %w: tensor<16x8xf32>, %t: tensor<2x4xi32>, %z: tensor<2x4x3xf32>, %n: tensor<2xf32>) {
  // expected-error @+1 {{(C6) expects columns [B, T, k] and their token ids, f32 [k], but got}}
  %0, %1, %2 = model.head_loss %h, %w, %t columns %z, %n : (tensor<2x4x8xf32>, tensor<16x8xf32>, tensor<2x4xi32>, tensor<2x4x3xf32>, tensor<2xf32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x4xi32>)
  return
}

// -----

func.func @head_loss_c7(%h: tensor<2x4x8xf32>, %w: tensor<16x8xf32>, %t: tensor<2x4xi32>) {
  // expected-error @+1 {{(C7) expects a label_smoothing in [0, 1]}}
  %0, %1, %2 = model.head_loss %h, %w, %t {label_smoothing = 1.5 : f64} : (tensor<2x4x8xf32>, tensor<16x8xf32>, tensor<2x4xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x4xi32>)
  return
}

// -----

func.func @dpo_loss_c1(%l: tensor<3xf32>) {
  // expected-error @+1 {{(C1) expects operands of type f32 [B], B even, but got 'tensor<3xf32>'}}
  %0:9 = model.dpo_loss %l, %l, %l {beta = 0.1 : f64} : (tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<3xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>)
  return
}

// -----

func.func @dpo_loss_c3_word(%l: tensor<4xf32>) {
  // expected-error @+1 {{(C3) has no loss 'aot'}}
  %0:9 = model.dpo_loss %l, %l, %l {beta = 0.1 : f64, kinds = ["aot"]} : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>)
  return
}

// -----

func.func @dpo_loss_c3_weights(%l: tensor<4xf32>) {
  // expected-error @+1 {{(C3) expects a weight for each kind}}
  %0:9 = model.dpo_loss %l, %l {beta = 0.1 : f64, kinds = ["sigmoid", "sft"]} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>)
  return
}

// -----

func.func @kto_loss_c1(%l: tensor<3xf32>) {
  // Without `mismatched` the number of sequences may be odd.
  %0:9 = model.kto_loss %l, %l, %l, %l {beta = 0.1 : f64, desirable_weight = 1.0 : f64, undesirable_weight = 1.0 : f64} : (tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<3xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>)
  // expected-error @+1 {{(C1) expects operands of type f32 [B], B even, but got 'tensor<3xf32>'}}
  %1:9 = model.kto_loss %l, %l, %l, %l {beta = 0.1 : f64, desirable_weight = 1.0 : f64, undesirable_weight = 1.0 : f64, mismatched} : (tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<3xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>)
  return
}

// -----

func.func @kto_loss_c2(%l: tensor<4xf32>) {
  // expected-error @+1 {{(C2) expects sums of type 'tensor<1xf32>', but got 'tensor<4xf32>'}}
  %0:9 = model.kto_loss %l, %l, %l, %l {beta = 0.1 : f64, desirable_weight = 1.0 : f64, undesirable_weight = 1.0 : f64} : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<4xf32>)
  return
}

// -----

func.func @orpo_loss_c2(%l: tensor<4xf32>) {
  // expected-error @+1 {{(C2) expects sums of type 'tensor<1xf32>', but got 'tensor<4xf32>'}}
  %0:12 = model.orpo_loss %l, %l, %l, %l {beta = 0.1 : f64} : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>)
  return
}

// -----

func.func @concat_c1(%a: tensor<16x8xf32>, %b: tensor<8x8xf32>) {
  // expected-error @+1 {{(C1) expects parts that add up to 25 rows, but got 24}}
  %0 = model.concat %a, %b {rows} : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<25x8xf32>
  return
}

// -----

func.func @concat_c2(%a: tensor<16x8xf32>, %b: tensor<8x4xf32>) {
  // expected-error @+1 {{(C2) expects row ranges of 'tensor<24x8xf32>', but got 'tensor<8x4xf32>'}}
  %0 = model.concat %a, %b {rows} : (tensor<16x8xf32>, tensor<8x4xf32>) -> tensor<24x8xf32>
  return
}

// -----

func.func @layer(%a: tensor<2x4x8xf32>) {
  // expected-error @+1 {{attribute 'layer' failed to satisfy constraint: index of a decoder layer, not negative}}
  %0 = model.add %a, %a {layer = -1 : i64} : tensor<2x4x8xf32>
  return
}

// -----

// Earlier versions used the attribute model.block instead of `layer`.
func.func @mark(%a: tensor<2x4x8xf32>) {
  // expected-error @+1 {{has no attribute 'model.block'}}
  %0 = model.add %a, %a {model.block = 1 : i64} : tensor<2x4x8xf32>
  return
}
