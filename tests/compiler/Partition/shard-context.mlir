// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --shard-context=ranks=2 | FileCheck %s
// RUN: qlora-opt %s --shard-context=ranks=2 --build-train-step | FileCheck %s --check-prefix=STEP
// RUN: qlora-opt %s --shard-context=ranks=1 | FileCheck %s --check-prefix=ONE
// RUN: not qlora-opt %s --shard-context=ranks=0 2>&1 | FileCheck %s --check-prefix=ZERO
// RUN: not qlora-opt %s --shard-context=ranks=3 2>&1 | FileCheck %s --check-prefix=THREE
// RUN: not qlora-opt %s --shard-context=ranks=4 2>&1 | FileCheck %s --check-prefix=FOUR

// ONE-NOT: all_to_all
// ZERO: error: expects at least one context-parallel rank, but got 0
// THREE: error: a sequence has 16 tokens, not divisible by --parallel cp=3; use a --max-length that is a multiple of 3
// FOUR: error: 'model.attention' op has 2 query heads and 2 key-value heads with sinks, not divisible by --parallel cp=4; use a number that divides them

// CHECK: module attributes {model.mesh = #model.mesh<cp = 2>, {{.*}}exchanged_bytes = {{[0-9]+}}{{.*}}ranks = 2
// Each rank has half of the tokens of both sequences.
// CHECK-LABEL: func.func @two
// CHECK-SAME: %[[IDS:.*]]: tensor<2x8xi32> {model.input = "ids"}, %{{.*}}: tensor<2x8xi32> {model.input = "targets"}, %[[POSITIONS:.*]]: tensor<2x8xi32> {model.input = "positions"}, %[[SEGMENTS:.*]]: tensor<2x8xi32> {model.input = "segments"}, %[[LENGTHS:.*]]: tensor<2x8xi32> {model.input = "lengths"}
// CHECK-SAME: -> (tensor<1xf32>, tensor<1xf32>, tensor<2x8xi32>) attributes {model.batch = 2 : i64, model.length = 16 : i64}
// CHECK: %[[S1:.*]] = model.all_gather %[[SEGMENTS]] {{.*}}ranks = #model<ranks cp>} : (tensor<2x8xi32>) -> tensor<4x8xi32>
// CHECK-NEXT: %[[S:.*]] = model.swap_blocks %[[S1]] {first = 2 : i64, {{.*}}second = 2 : i64} : (tensor<4x8xi32>) -> tensor<2x16xi32>
// CHECK: %[[X:.*]] = model.embedding %[[IDS]], {{.*}} -> tensor<2x8x128xf32>
// `lengths` has the lengths of complete segments on every rank.
// CHECK: model.rope_table %[[POSITIONS]], %[[LENGTHS]] {{.*}}dynamic_factor = 4.000000e+00 : f64, {{.*}}original_length = 4 : i64} : (tensor<2x8xi32>, tensor<2x8xi32>) -> (tensor<2x8x64xf32>
// CHECK: %[[Q1:.*]] = model.swap_blocks %[[X]] {first = 16 : i64, layer = 3 : i64, second = 2 : i64} : (tensor<2x8x128xf32>) -> tensor<4x8x64xf32>
// CHECK-NEXT: %[[Q2:.*]] = model.all_to_all %[[Q1]] {layer = 3 : i64, ranks = #model<ranks cp>} : (tensor<4x8x64xf32>) -> tensor<4x8x64xf32>
// CHECK-NEXT: %[[Q:.*]] = model.swap_blocks %[[Q2]] {first = 2 : i64, layer = 3 : i64, second = 2 : i64} : (tensor<4x8x64xf32>) -> tensor<2x16x64xf32>
// The rank reads the sinks of its own heads.
// CHECK: %[[SINKS:.*]] = model.weight @sinks {layer = 3 : i64, part = #model.part<2, 0, 0, 2, 2, cp>} : tensor<1xf32>
// CHECK: %[[A:.*]], %{{.*}} = model.attention %[[Q]], %{{.*}}, %{{.*}}, %[[S]] sinks %[[SINKS]] {{.*}}heads = 1 : i64, kv_heads = 1 : i64, {{.*}} -> (tensor<2x16x64xf32>, tensor<2x1x16xf32>)
// CHECK-NEXT: %[[A1:.*]] = model.swap_blocks %[[A]] {first = 2 : i64, layer = 3 : i64, second = 2 : i64} : (tensor<2x16x64xf32>) -> tensor<4x8x64xf32>
// CHECK-NEXT: %[[A2:.*]] = model.all_to_all %[[A1]]
// CHECK-NEXT: %[[A3:.*]] = model.swap_blocks %[[A2]] {first = 2 : i64, layer = 3 : i64, second = 16 : i64} : (tensor<4x8x64xf32>) -> tensor<2x8x128xf32>
// CHECK: model.linear %[[A3]], {{.*}} -> tensor<2x8x128xf32>
// CHECK: model.head_loss {{.*}} -> (tensor<1xf32>, tensor<1xf32>, tensor<2x8xi32>)

// With one sequence, the tokens arrive in order: no swap_blocks is between an
// all_to_all and attention.
// CHECK-LABEL: func.func @one
// CHECK: %[[P1:.*]] = model.swap_blocks %{{.*}} {first = 8 : i64, second = 2 : i64} : (tensor<1x8x128xf32>) -> tensor<2x8x64xf32>
// CHECK-NEXT: model.all_to_all %[[P1]] {ranks = #model<ranks cp>} : (tensor<2x8x64xf32>) -> tensor<1x16x64xf32>
// CHECK: %[[O:.*]], %{{.*}} = model.attention
// CHECK-NEXT: %[[O1:.*]] = model.all_to_all %[[O]] {{.*}} : (tensor<1x16x64xf32>) -> tensor<2x8x64xf32>
// CHECK-NEXT: model.swap_blocks %[[O1]] {first = 2 : i64, second = 8 : i64} : (tensor<2x8x64xf32>) -> tensor<1x8x128xf32>

// Gradients are exchanged in the opposite direction.
// STEP: train.step accumulate batch 2 length 16
// STEP: model.all_to_all {{.*}}phase = #model.phase<backward>{{.*}} : (tensor<4x8x64xf32>) -> tensor<4x8x64xf32>
// STEP: train.attention_grad
// STEP: model.all_to_all {{.*}}phase = #model.phase<backward>

model.parameter @table : tensor<96x128xf32> {file = "m.safetensors"}
model.parameter @sinks : tensor<2xf32> {file = "m.safetensors"}
model.parameter @o : tensor<128x128xf32> {init = "kaiming", trainable}
model.parameter @head : tensor<96x128xf32> {file = "m.safetensors"}

func.func @two(%ids: tensor<2x16xi32> {model.input = "ids"},
               %targets: tensor<2x16xi32> {model.input = "targets"},
               %positions: tensor<2x16xi32> {model.input = "positions"},
               %segments: tensor<2x16xi32> {model.input = "segments"},
               %lengths: tensor<2x16xi32> {model.input = "lengths"})
    -> (tensor<1xf32>, tensor<1xf32>, tensor<2x16xi32>)
    attributes {model.batch = 2 : i64, model.length = 16 : i64} {
  %table = model.weight @table : tensor<96x128xf32>
  %x = model.embedding %ids, %table : (tensor<2x16xi32>, tensor<96x128xf32>) -> tensor<2x16x128xf32>
  %wo = model.weight @o : tensor<128x128xf32>
  %k = model.linear %x, %wo : (tensor<2x16x128xf32>, tensor<128x128xf32>) -> tensor<2x16x128xf32>
  %cos, %sin = model.rope_table %positions, %lengths {frequencies = array<f32: 1.0, 0.1, 1.0, 0.1>, attention_factor = 1.0 : f64, dynamic_factor = 4.0 : f64, original_length = 4 : i64} : (tensor<2x16xi32>, tensor<2x16xi32>) -> (tensor<2x16x64xf32>, tensor<2x16x64xf32>)
  %r = model.rope %k, %cos, %sin {rotated = 4 : i64} : (tensor<2x16x128xf32>, tensor<2x16x64xf32>, tensor<2x16x64xf32>) -> tensor<2x16x128xf32>
  %sinks = model.weight @sinks : tensor<2xf32>
  %att, %lse = model.attention %x, %r, %x, %segments sinks %sinks {layer = 3 : i64, heads = 2 : i64, kv_heads = 2 : i64, head_dim = 64 : i64, window = 0 : i64, scale = 1.0 : f64} : (tensor<2x16x128xf32>, tensor<2x16x128xf32>, tensor<2x16x128xf32>, tensor<2x16xi32>, tensor<2xf32>) -> (tensor<2x16x128xf32>, tensor<2x2x16xf32>)
  %o = model.linear %att, %wo {module = "o"} : (tensor<2x16x128xf32>, tensor<128x128xf32>) -> tensor<2x16x128xf32>
  %wh = model.weight @head : tensor<96x128xf32>
  %loss, %count, %correct = model.head_loss %o, %wh, %targets : (tensor<2x16x128xf32>, tensor<96x128xf32>, tensor<2x16xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x16xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<2x16xi32>
}

func.func @one(%ids: tensor<1x16xi32> {model.input = "ids"},
               %targets: tensor<1x16xi32> {model.input = "targets"},
               %segments: tensor<1x16xi32> {model.input = "segments"})
    -> (tensor<1xf32>, tensor<1xf32>, tensor<1x16xi32>)
    attributes {model.batch = 1 : i64, model.length = 16 : i64} {
  %table = model.weight @table : tensor<96x128xf32>
  %x = model.embedding %ids, %table : (tensor<1x16xi32>, tensor<96x128xf32>) -> tensor<1x16x128xf32>
  %wo = model.weight @o : tensor<128x128xf32>
  %q = model.linear %x, %wo : (tensor<1x16x128xf32>, tensor<128x128xf32>) -> tensor<1x16x128xf32>
  %att, %lse = model.attention %q, %q, %q, %segments {heads = 2 : i64, kv_heads = 2 : i64, head_dim = 64 : i64, window = 0 : i64, scale = 1.0 : f64} : (tensor<1x16x128xf32>, tensor<1x16x128xf32>, tensor<1x16x128xf32>, tensor<1x16xi32>) -> (tensor<1x16x128xf32>, tensor<1x2x16xf32>)
  %wh = model.weight @head : tensor<96x128xf32>
  %loss, %count, %correct = model.head_loss %att, %wh, %targets : (tensor<1x16x128xf32>, tensor<96x128xf32>, tensor<1x16xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x16xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x16xi32>
}
