// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --shard-context=ranks=2 --split-input-file --verify-diagnostics | FileCheck %s

// With pairs of sequences, the losses cover all tokens, and every rank counts
// the pairs.
// CHECK-LABEL: func.func @pairs
// CHECK: %[[LOSSES:.*]], %[[COUNTS:.*]], %{{.*}} = model.head_loss {{.*}} -> (tensor<2xf32>, tensor<2xf32>, tensor<2x8xi32>)
// CHECK-DAG: %[[L:.*]] = model.all_sum %[[LOSSES]] {ranks = #model<ranks cp>} : tensor<2xf32>
// CHECK-DAG: %[[C:.*]] = model.all_sum %[[COUNTS]] {ranks = #model<ranks cp>} : tensor<2xf32>
// CHECK: model.dpo_loss %[[L]], %[[C]], %[[L]]
model.parameter @head : tensor<96x128xf32> {file = "m.safetensors"}
func.func @pairs(%h: tensor<2x16x128xf32> {model.input = "ids"},
                 %targets: tensor<2x16xi32> {model.input = "targets"}) -> (tensor<1xf32>, tensor<1xf32>)
    attributes {model.batch = 2 : i64, model.length = 16 : i64} {
  %wh = model.weight @head : tensor<96x128xf32>
  %losses, %counts, %correct = model.head_loss %h, %wh, %targets : (tensor<2x16x128xf32>, tensor<96x128xf32>, tensor<2x16xi32>) -> (tensor<2xf32>, tensor<2xf32>, tensor<2x16xi32>)
  %slopes, %loss, %count, %cr, %rr, %right, %cl, %rl, %chosen = model.dpo_loss %losses, %counts, %losses {beta = 0.1 : f64} : (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>)
  return %loss, %count : tensor<1xf32>, tensor<1xf32>
}

// -----

// The token loss stays a partial sum. Every rank computes the complete router
// loss, so it is divided by the number of ranks. Attention reads the segments
// of all tokens, and other ops the segments of the rank's own tokens.
// CHECK-LABEL: func.func @routers
// CHECK-SAME: %[[SEGMENTS:[a-z0-9]*]]: tensor<2x8xi32> {model.input = "segments"}
// CHECK: %[[P:.*]] = model.router_probs %{{.*}}, %[[SEGMENTS]] {{.*}} : (tensor<2x8x4xf32>, tensor<2x8xi32>) -> tensor<2x8x4xf32>
// CHECK: %[[S:.*]] = model.column_sum %[[P]]
// CHECK-NEXT: %[[SUMS:.*]] = model.all_sum %[[S]] {ranks = #model<ranks cp>}
// CHECK: %[[C:.*]] = model.count_choices
// CHECK-NEXT: %[[COUNTS:.*]] = model.all_sum %[[C]]
// CHECK: %[[A:.*]], %[[ROUTERS:.*]] = model.router_loss %[[SUMS]], %[[COUNTS]] {chosen = 2 : i64, coefficient = 1.000000e-01 : f64}
// CHECK: %[[LOSS:.*]], %[[COUNT:.*]], %{{.*}} = model.head_loss
// CHECK: return %[[LOSS]], %[[COUNT]], %[[ROUTERS]]
model.parameter @head : tensor<96x4xf32> {file = "m.safetensors"}
func.func @routers(%x: tensor<2x16x4xf32> {model.input = "ids"},
                   %choices: tensor<2x16x2xi32> {model.input = "positions"},
                   %targets: tensor<2x16xi32> {model.input = "targets"},
                   %segments: tensor<2x16xi32> {model.input = "segments"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<1xf32>)
    attributes {model.batch = 2 : i64, model.length = 16 : i64} {
  %att, %lse = model.attention %x, %x, %x, %segments {heads = 2 : i64, kv_heads = 2 : i64, head_dim = 2 : i64, window = 0 : i64, scale = 1.0 : f64} : (tensor<2x16x4xf32>, tensor<2x16x4xf32>, tensor<2x16x4xf32>, tensor<2x16xi32>) -> (tensor<2x16x4xf32>, tensor<2x2x16xf32>)
  %p = model.router_probs %att, %segments {experts = 4 : i64} : (tensor<2x16x4xf32>, tensor<2x16xi32>) -> tensor<2x16x4xf32>
  %sums = model.column_sum %p : (tensor<2x16x4xf32>) -> tensor<4xf32>
  %marks = model.mark_tokens %segments : (tensor<2x16xi32>) -> tensor<2x16x2xf32>
  %counts = model.count_choices %choices, %marks : (tensor<2x16x2xi32>, tensor<2x16x2xf32>) -> tensor<4xf32>
  %slopes, %routers = model.router_loss %sums, %counts {coefficient = 0.2 : f64, chosen = 2 : i64} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<1xf32>)
  %wh = model.weight @head : tensor<96x4xf32>
  %loss, %count, %correct = model.head_loss %att, %wh, %targets : (tensor<2x16x4xf32>, tensor<96x4xf32>, tensor<2x16xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x16xi32>)
  return %loss, %count, %routers : tensor<1xf32>, tensor<1xf32>, tensor<1xf32>
}

// -----

func.func @second_result(%x: tensor<1x16x128xf32> {model.input = "ids"}, %segments: tensor<1x16xi32> {model.input = "segments"}) -> tensor<1x2x16xf32>
    attributes {model.batch = 1 : i64, model.length = 16 : i64} {
  // expected-error @+1 {{has a second result that is used, which --parallel cp does not support; train without cp}}
  %att, %lse = model.attention %x, %x, %x, %segments {heads = 2 : i64, kv_heads = 2 : i64, head_dim = 64 : i64, window = 0 : i64, scale = 1.0 : f64} : (tensor<1x16x128xf32>, tensor<1x16x128xf32>, tensor<1x16x128xf32>, tensor<1x16xi32>) -> (tensor<1x16x128xf32>, tensor<1x2x16xf32>)
  return %lse : tensor<1x2x16xf32>
}

// -----

model.parameter @segments : tensor<1x16xi32> {file = "m.safetensors"}
func.func @operand(%x: tensor<1x16x128xf32> {model.input = "ids"}) -> tensor<1x16x128xf32>
    attributes {model.batch = 1 : i64, model.length = 16 : i64} {
  %segments = model.weight @segments : tensor<1x16xi32>
  // expected-error @+1 {{has an operand that --parallel cp cannot shard: expects tokens, or a weight that is read by column; train without cp}}
  %att, %lse = model.attention %x, %x, %x, %segments {heads = 2 : i64, kv_heads = 2 : i64, head_dim = 64 : i64, window = 0 : i64, scale = 1.0 : f64} : (tensor<1x16x128xf32>, tensor<1x16x128xf32>, tensor<1x16x128xf32>, tensor<1x16xi32>) -> (tensor<1x16x128xf32>, tensor<1x2x16xf32>)
  return %att : tensor<1x16x128xf32>
}

// -----

// Two ranks need one key head each; both have a copy of the same head.
// CHECK-LABEL: func.func @repeated
// CHECK: %[[K:.*]] = model.split %{{.*}} : (tensor<1x8x64xf32>) -> tensor<1x8x64xf32>
// CHECK: %[[KK:.*]] = model.concat %[[K]], %[[K]] : (tensor<1x8x64xf32>, tensor<1x8x64xf32>) -> tensor<1x8x128xf32>
// CHECK: model.attention {{.*}}heads = 2 : i64, kv_heads = 1 : i64
func.func @repeated(%x: tensor<1x16x256xf32> {model.input = "ids"}, %k: tensor<1x16x64xf32> {model.input = "positions"}, %segments: tensor<1x16xi32> {model.input = "segments"}) -> tensor<1x16x256xf32>
    attributes {model.batch = 1 : i64, model.length = 16 : i64} {
  %att, %lse = model.attention %x, %k, %k, %segments {heads = 4 : i64, kv_heads = 1 : i64, head_dim = 64 : i64, window = 0 : i64, scale = 1.0 : f64} : (tensor<1x16x256xf32>, tensor<1x16x64xf32>, tensor<1x16x64xf32>, tensor<1x16xi32>) -> (tensor<1x16x256xf32>, tensor<1x4x16xf32>)
  return %att : tensor<1x16x256xf32>
}

// -----

// With three heads, one rank has the first two. The second rank has the third
// head twice and reads one copy.
// CHECK-LABEL: func.func @filled
// CHECK-SAME: %[[X:.*]]: tensor<1x8x192xf32>
// CHECK-DAG: %[[K:.*]] = model.split %{{.*}} : (tensor<1x8x64xf32>) -> tensor<1x8x64xf32>
// CHECK-DAG: model.concat %[[K]], %[[K]] : {{.*}} -> tensor<1x8x128xf32>
// CHECK: %[[Q:.*]]:2 = model.split %[[X]] : (tensor<1x8x192xf32>) -> (tensor<1x8x128xf32>, tensor<1x8x64xf32>)
// CHECK-NEXT: %[[QQ:.*]] = model.concat %[[Q]]#0, %[[Q]]#1, %[[Q]]#1 : {{.*}} -> tensor<1x8x256xf32>
// CHECK-NEXT: model.swap_blocks %[[QQ]]
// CHECK: model.attention {{.*}}heads = 2 : i64, kv_heads = 1 : i64, {{.*}} -> (tensor<1x16x128xf32>, tensor<1x2x16xf32>)
// CHECK: %[[A:.*]] = model.swap_blocks {{.*}} -> tensor<1x8x256xf32>
// CHECK-NEXT: %[[READ:.*]]:2 = model.split %[[A]] : (tensor<1x8x256xf32>) -> (tensor<1x8x192xf32>, tensor<1x8x64xf32>)
// CHECK-NEXT: return %[[READ]]#0
func.func @filled(%x: tensor<1x16x192xf32> {model.input = "ids"}, %k: tensor<1x16x64xf32> {model.input = "positions"}, %segments: tensor<1x16xi32> {model.input = "segments"}) -> tensor<1x16x192xf32>
    attributes {model.batch = 1 : i64, model.length = 16 : i64} {
  %att, %lse = model.attention %x, %k, %k, %segments {heads = 3 : i64, kv_heads = 1 : i64, head_dim = 64 : i64, window = 0 : i64, scale = 1.0 : f64} : (tensor<1x16x192xf32>, tensor<1x16x64xf32>, tensor<1x16x64xf32>, tensor<1x16xi32>) -> (tensor<1x16x192xf32>, tensor<1x3x16xf32>)
  return %att : tensor<1x16x192xf32>
}

// -----


model.parameter @w : tensor<8x16x!model.quantized<llm_int8, 16, false>> {file = "m.safetensors"}
func.func @columns_of_all_rows(%x: tensor<1x16x16xf32> {model.input = "ids"}) -> tensor<1x16x8xf32>
    attributes {model.batch = 1 : i64, model.length = 16 : i64} {
  %w = model.weight @w : tensor<8x16x!model.quantized<llm_int8, 16, false>>
  // expected-error @+1 {{chooses LLM.int8 outlier columns from all tokens, but --parallel cp shards them; remove cp, or use --llm-int8-threshold 0}}
  %y = model.linear %x, %w {int8_threshold = 6.0 : f64} : (tensor<1x16x16xf32>, tensor<8x16x!model.quantized<llm_int8, 16, false>>) -> tensor<1x16x8xf32>
  return %y : tensor<1x16x8xf32>
}
