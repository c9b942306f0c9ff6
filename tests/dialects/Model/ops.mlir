// SPDX-License-Identifier: MIT

// Every op of the model dialect can be printed and parsed again.

// RUN: qlora-opt %s | qlora-opt | FileCheck %s
// RUN: qlora-opt %s --mlir-print-op-generic | qlora-opt | FileCheck %s

// CHECK: model.parameter @embed : tensor<96x32xbf16> {file = "a.safetensors"}
model.parameter @embed : tensor<96x32xbf16> {file = "a.safetensors"}
// CHECK: model.parameter @q : tensor<32x32x!model.quantized<nf4, 64, true>> {file = "a.safetensors", file_type = bf16, quantized = !model.quantized<nf4, 64, true>}
model.parameter @q : tensor<32x32x!model.quantized<nf4, 64, true>> {file = "a.safetensors", file_type = bf16, quantized = !model.quantized<nf4, 64, true>}
// CHECK: model.parameter @resident : tensor<32x32xbf16> {file = "a.safetensors", quantized = !model.quantized<nf4, 128, false>, stored_quantized}
model.parameter @resident : tensor<32x32xbf16> {file = "a.safetensors", quantized = !model.quantized<nf4, 128, false>, stored_quantized}
// CHECK: model.parameter @a : tensor<12x32xf32> {init = "kaiming", part_names = ["a.q", "a.k"], part_rows = array<i64: 8, 4>, trainable}
model.parameter @a : tensor<12x32xf32> {init = "kaiming", part_names = ["a.q", "a.k"], part_rows = array<i64: 8, 4>, trainable}
model.parameter @n : tensor<32xbf16> {file = "a.safetensors"}
model.parameter @sinks : tensor<4xf32> {file = "a.safetensors", file_type = bf16}
model.parameter @b : tensor<32xbf16> {file = "a.safetensors"}

// CHECK-LABEL: func.func @library
func.func @library(%ids: tensor<?x?xi32>, %segments: tensor<?x?xi32>)
    -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>) {
  // CHECK: %[[E:.*]] = model.weight @embed : tensor<96x32xbf16>
  %e = model.weight @embed : tensor<96x32xbf16>
  // CHECK: %[[Q:.*]] = model.weight @q : tensor<32x32x!model.quantized<nf4, 64, true>>
  %q = model.weight @q : tensor<32x32x!model.quantized<nf4, 64, true>>
  // CHECK: %[[X:.*]] = model.embedding %{{.*}}, %[[E]] : (tensor<?x?xi32>, tensor<96x32xbf16>) -> tensor<?x?x32xf32>
  %x = model.embedding %ids, %e : (tensor<?x?xi32>, tensor<96x32xbf16>) -> tensor<?x?x32xf32>
  // CHECK: %[[Y:.*]] = model.linear %[[X]], %[[Q]] {layer = 0 : i64, module = "layers.0.q_proj", phase = #model.phase<backward>} : (tensor<?x?x32xf32>, tensor<32x32x!model.quantized<nf4, 64, true>>) -> tensor<?x?x32xf32>
  %y = model.linear %x, %q {layer = 0 : i64, module = "layers.0.q_proj", phase = #model.phase<backward>} : (tensor<?x?x32xf32>, tensor<32x32x!model.quantized<nf4, 64, true>>) -> tensor<?x?x32xf32>
  // CHECK: %[[Z:.*]] = model.linear %[[X]], %[[Q]] init %[[Y]] {scale = 2.000000e+00 : f64} : (tensor<?x?x32xf32>, tensor<32x32x!model.quantized<nf4, 64, true>>, tensor<?x?x32xf32>) -> tensor<?x?x32xf32>
  %z = model.linear %x, %q init %y {scale = 2.0 : f64} : (tensor<?x?x32xf32>, tensor<32x32x!model.quantized<nf4, 64, true>>, tensor<?x?x32xf32>) -> tensor<?x?x32xf32>
  // CHECK: model.linear %[[Y]], %[[Q]] layout in_out init %[[X]] : (tensor<?x?x32xf32>, tensor<32x32x!model.quantized<nf4, 64, true>>, tensor<?x?x32xf32>) -> tensor<?x?x32xf32>
  %turned = model.linear %y, %q layout in_out init %x : (tensor<?x?x32xf32>, tensor<32x32x!model.quantized<nf4, 64, true>>, tensor<?x?x32xf32>) -> tensor<?x?x32xf32>
  // CHECK: %[[K:.*]]:2 = model.split %[[Z]] : (tensor<?x?x32xf32>) -> (tensor<?x?x16xf32>, tensor<?x?x16xf32>)
  %k:2 = model.split %z : (tensor<?x?x32xf32>) -> (tensor<?x?x16xf32>, tensor<?x?x16xf32>)
  // CHECK: %[[A:.*]], %{{.*}} = model.attention %[[Z]], %[[K]]#0, %[[K]]#1, %{{.*}} {head_dim = 8 : i64, heads = 4 : i64, kv_heads = 2 : i64, scale = 5.000000e-01 : f64, window = 0 : i64}
  %a, %lse = model.attention %z, %k#0, %k#1, %segments {heads = 4, kv_heads = 2, head_dim = 8, window = 0, scale = 0.5 : f64} : (tensor<?x?x32xf32>, tensor<?x?x16xf32>, tensor<?x?x16xf32>, tensor<?x?xi32>) -> (tensor<?x?x32xf32>, tensor<?x4x?xf32>)
  // CHECK: model.attention %[[Z]], %[[K]]#0, %[[K]]#1, %{{.*}} sinks %{{.*}} {cap = 5.000000e+01 : f64, head_dim = 8 : i64,
  %sinks = model.weight @sinks : tensor<4xf32>
  %capped, %cl = model.attention %z, %k#0, %k#1, %segments sinks %sinks {heads = 4, kv_heads = 2, head_dim = 8, window = 0, scale = 0.5 : f64, cap = 50.0 : f64} : (tensor<?x?x32xf32>, tensor<?x?x16xf32>, tensor<?x?x16xf32>, tensor<?x?xi32>, tensor<4xf32>) -> (tensor<?x?x32xf32>, tensor<?x4x?xf32>)
  // CHECK: model.concat %[[K]]#1, %[[K]]#0 : (tensor<?x?x16xf32>, tensor<?x?x16xf32>) -> tensor<?x?x32xf32>
  %c = model.concat %k#1, %k#0 : (tensor<?x?x16xf32>, tensor<?x?x16xf32>) -> tensor<?x?x32xf32>
  // CHECK: %[[LIST:.*]] = model.token_list {tokens = array<i64: 95, 7>} : tensor<2xf32>
  %list = model.token_list {tokens = array<i64: 95, 7>} : tensor<2xf32>
  // CHECK: %[[IS:.*]], %[[REST:.*]] = model.match_tokens %{{.*}}, %[[LIST]] : (tensor<?x?xi32>, tensor<2xf32>) -> (tensor<?x?x2xf32>, tensor<?x?xf32>)
  %is, %rest = model.match_tokens %ids, %list : (tensor<?x?xi32>, tensor<2xf32>) -> (tensor<?x?x2xf32>, tensor<?x?xf32>)
  // CHECK: model.scale_rows %[[A]], %[[REST]] : (tensor<?x?x32xf32>, tensor<?x?xf32>) -> tensor<?x?x32xf32>
  %scaled = model.scale_rows %a, %rest : (tensor<?x?x32xf32>, tensor<?x?xf32>) -> tensor<?x?x32xf32>
  // CHECK: model.head_loss %[[A]], %[[E]], %{{.*}} columns %[[IS]], %[[LIST]] : (tensor<?x?x32xf32>, tensor<96x32xbf16>, tensor<?x?xi32>, tensor<?x?x2xf32>, tensor<2xf32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
  %l2, %n2, %c2 = model.head_loss %a, %e, %ids columns %is, %list : (tensor<?x?x32xf32>, tensor<96x32xbf16>, tensor<?x?xi32>, tensor<?x?x2xf32>, tensor<2xf32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
  // CHECK: %[[LOSS:.*]], %[[COUNT:.*]], %[[CORRECT:.*]] = model.head_loss %[[A]], %[[E]], %{{.*}} : (tensor<?x?x32xf32>, tensor<96x32xbf16>, tensor<?x?xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
  %loss, %count, %correct = model.head_loss %a, %e, %ids : (tensor<?x?x32xf32>, tensor<96x32xbf16>, tensor<?x?xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>
}

// CHECK-LABEL: func.func @row_ops
func.func @row_ops(%x: tensor<2x4x32xbf16>, %positions: tensor<2x4xi32>, %lengths: tensor<2x4xi32>) {
  %n = model.weight @n : tensor<32xbf16>
  %b = model.weight @b : tensor<32xbf16>
  // CHECK: model.rms_norm %{{.*}}, %{{.*}} {epsilon = 1.000000e-05 : f64} : (tensor<2x4x32xbf16>, tensor<32xbf16>) -> tensor<2x4x32xbf16>
  %0 = model.rms_norm %x, %n {epsilon = 1.0e-5 : f64} : (tensor<2x4x32xbf16>, tensor<32xbf16>) -> tensor<2x4x32xbf16>
  // CHECK: %[[COS:.*]], %[[SIN:.*]] = model.rope_table %{{.*}} {attention_factor = 1.000000e+00 : f64, frequencies = array<f32: 1.000000e+00, 5.000000e-01, 1.000000e+00, 5.000000e-01>} : (tensor<2x4xi32>) -> (tensor<2x4x4xbf16>, tensor<2x4x4xbf16>)
  %cos, %sin = model.rope_table %positions {frequencies = array<f32: 1.0, 0.5, 1.0, 0.5>, attention_factor = 1.0 : f64} : (tensor<2x4xi32>) -> (tensor<2x4x4xbf16>, tensor<2x4x4xbf16>)
  // CHECK: model.rope %{{.*}}, %[[COS]], %[[SIN]] : (tensor<2x4x32xbf16>, tensor<2x4x4xbf16>, tensor<2x4x4xbf16>) -> tensor<2x4x32xbf16>
  %1 = model.rope %0, %cos, %sin : (tensor<2x4x32xbf16>, tensor<2x4x4xbf16>, tensor<2x4x4xbf16>) -> tensor<2x4x32xbf16>
  // CHECK: model.glu silu %{{.*}}, %{{.*}} : tensor<2x4x32xbf16>
  %2 = model.glu silu %0, %1 : tensor<2x4x32xbf16>
  // CHECK: model.rms_norm %{{.*}}, %{{.*}} {epsilon = 1.000000e-05 : f64, offset = 1.000000e+00 : f64}
  %above = model.rms_norm %x, %n {epsilon = 1.0e-5 : f64, offset = 1.0 : f64} : (tensor<2x4x32xbf16>, tensor<32xbf16>) -> tensor<2x4x32xbf16>
  // CHECK: %[[C:.*]], %[[S:.*]] = model.rope_table %{{.*}}, %{{.*}} {attention_factor = 1.100000e+00 : f64, frequencies = array<f32: 1.000000e+00, 1.000000e+00>, long_frequencies = array<f32: 5.000000e-01, 5.000000e-01>, original_length = 3 : i64} : (tensor<2x4xi32>, tensor<2x4xi32>) -> (tensor<2x4x4xbf16>, tensor<2x4x4xbf16>)
  %c, %s = model.rope_table %positions, %lengths {frequencies = array<f32: 1.0, 1.0>, long_frequencies = array<f32: 0.5, 0.5>, original_length = 3, attention_factor = 1.1 : f64} : (tensor<2x4xi32>, tensor<2x4xi32>) -> (tensor<2x4x4xbf16>, tensor<2x4x4xbf16>)
  // CHECK: model.rope %{{.*}}, %[[C]], %[[S]] {rotated = 2 : i64}
  %turned = model.rope %0, %c, %s {rotated = 2} : (tensor<2x4x32xbf16>, tensor<2x4x4xbf16>, tensor<2x4x4xbf16>) -> tensor<2x4x32xbf16>
  // CHECK: model.scale %{{.*}} {factor = 6.928203{{.*}} : f64, rounded} : tensor<2x4x32xbf16>
  %scaled = model.scale %turned {factor = 6.92820323 : f64, rounded} : tensor<2x4x32xbf16>
  // CHECK: model.add %{{.*}}, %{{.*}} : tensor<2x4x32xbf16>
  %3 = model.add %0, %2 : tensor<2x4x32xbf16>
  // CHECK: model.add_bias %{{.*}}, %{{.*}} : (tensor<2x4x32xbf16>, tensor<32xbf16>) -> tensor<2x4x32xbf16>
  %4 = model.add_bias %3, %b : (tensor<2x4x32xbf16>, tensor<32xbf16>) -> tensor<2x4x32xbf16>
  // CHECK: model.magnitude %{{.*}}, %{{.*}}, %{{.*}} : (tensor<2x4x32xbf16>, tensor<32xbf16>, tensor<32xbf16>) -> tensor<2x4x32xbf16>
  %sized = model.magnitude %4, %n, %b : (tensor<2x4x32xbf16>, tensor<32xbf16>, tensor<32xbf16>) -> tensor<2x4x32xbf16>
  // CHECK: model.layer_norm %{{.*}}, %{{.*}}, %{{.*}} {epsilon = 1.000000e-05 : f64} : (tensor<2x4x32xbf16>, tensor<32xbf16>, tensor<32xbf16>) -> tensor<2x4x32xbf16>
  %6 = model.layer_norm %4, %n, %b {epsilon = 1.0e-5 : f64} : (tensor<2x4x32xbf16>, tensor<32xbf16>, tensor<32xbf16>) -> tensor<2x4x32xbf16>
  // CHECK: model.activation gelu_tanh %{{.*}} : tensor<2x4x32xbf16>
  %7 = model.activation gelu_tanh %6 : tensor<2x4x32xbf16>
  // CHECK: model.activation relu2 %{{.*}} : tensor<2x4x32xbf16>
  %squared = model.activation relu2 %7 : tensor<2x4x32xbf16>
  // CHECK: model.dropout %{{.*}} {id = 3 : i64, probability = 1.000000e-01 : f64} : tensor<2x4x32xbf16>
  %5 = model.dropout %4 {probability = 0.1 : f64, id = 3} : tensor<2x4x32xbf16>
  // CHECK: model.noise %{{.*}} {id = 4 : i64, magnitude = 5.000000e-01 : f64} : tensor<2x4x32xbf16>
  %noisy = model.noise %5 {magnitude = 0.5 : f64, id = 4} : tensor<2x4x32xbf16>
  return
}

// All kinds of maps, and every op that exists only in row regions.
// CHECK-LABEL: func.func @rows
func.func @rows(%x: tensor<2x3x8xbf16>, %c: tensor<4xf32>, %s: tensor<2x3xi32>, %g: tensor<2x3x4xf32>, %o: tensor<1xf32>) -> tensor<2x3x8xf32> {
  // 2 * 3 * 8 elements are 12 rows of 4, two for each of 6 tokens.
  // CHECK: model.rows(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) attributes {columns = 4 : i64, label = "all", maps = [#model.map<full>, #model.map<column>, #model.map<scalar, 2>, #model.map<group, 2>, #model.map<global>]}
  // CHECK-NEXT: ^bb0(%[[X:.*]]: tensor<4xf32>, %[[C:.*]]: tensor<4xf32>, %[[S:.*]]: f32, %[[G:.*]]: tensor<4xf32>, %[[O:.*]]: f32):
  %y = model.rows(%x, %c, %s, %g, %o) attributes {columns = 4, label = "all", maps = [#model.map<full>, #model.map<column>, #model.map<scalar, 2>, #model.map<group, 2>, #model.map<global>]}
      : (tensor<2x3x8xbf16>, tensor<4xf32>, tensor<2x3xi32>, tensor<2x3x4xf32>, tensor<1xf32>) -> tensor<2x3x8xf32> {
  ^bb0(%0: tensor<4xf32>, %1: tensor<4xf32>, %2: f32, %3: tensor<4xf32>, %4: f32):
    // CHECK: model.row_sum %[[X]] : tensor<4xf32>
    %5 = model.row_sum %0 : tensor<4xf32>
    // CHECK: model.row_splat %{{.*}} : tensor<4xf32>
    %6 = model.row_splat %5 : tensor<4xf32>
    // CHECK: model.row_rotate %[[G]] : tensor<4xf32>
    %7 = model.row_rotate %3 : tensor<4xf32>
    // CHECK: model.row_rotate %[[G]] {width = 2 : i64} : tensor<4xf32>
    %part = model.row_rotate %3 {width = 2} : tensor<4xf32>
    // CHECK: model.row_sigmoid %{{.*}} : tensor<4xf32>
    %8 = model.row_sigmoid %7 : tensor<4xf32>
    // CHECK: model.row_constant [1.000000e+00, 2.000000e+00, 3.000000e+00, 4.000000e+00] : tensor<4xf32>
    %9 = model.row_constant [1.0, 2.0, 3.0, 4.0] : tensor<4xf32>
    // CHECK: model.row_random {id = 7 : i64} : tensor<4xf32>
    %10 = model.row_random {id = 7} : tensor<4xf32>
    // CHECK: model.row_step "beta1"
    %11 = model.row_step "beta1"
    %12 = arith.addf %6, %8 : tensor<4xf32>
    // CHECK: model.row_yield %{{.*}} : tensor<4xf32>
    model.row_yield %12 : tensor<4xf32>
  }
  return %y : tensor<2x3x8xf32>
}
