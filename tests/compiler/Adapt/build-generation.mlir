// SPDX-License-Identifier: MIT

// The functions prefill and decode of a forward with two attentions, the second
// one with a window.

// RUN: qlora-opt %s --split-input-file --specialize-shapes="batch=2 lengths=16 generation=3,8" --build-generation="entries=16" | FileCheck %s
// RUN: qlora-opt %s --split-input-file --specialize-shapes="batch=2 lengths=16 generation=3,8 compute-type=bfloat16" --build-generation="entries=16" | FileCheck %s --check-prefix=BF16
// RUN: qlora-opt %s --split-input-file --specialize-shapes="batch=2 lengths=16 generation=3,8" --build-generation="entries=16 cache-type=float16" | FileCheck %s --check-prefix=F16
// RUN: qlora-opt %s --split-input-file --specialize-shapes="batch=2 lengths=16 generation=3,8" --build-generation="entries=16 cache-type=int8" | FileCheck %s --check-prefix=INT8
// RUN: qlora-opt %s --split-input-file --specialize-shapes="batch=2 lengths=16 generation=3,8" --build-generation="entries=12" | FileCheck %s --check-prefix=SHORT
// RUN: qlora-opt %s --split-input-file --specialize-shapes="batch=2 lengths=16" --build-generation="entries=16" | FileCheck %s --check-prefix=NONE

// Both functions share the caches. A window of 4 needs the 3 tokens before a
// prefill and its 8 tokens.
// CHECK-DAG: model.cache @attention.0.keys : tensor<3x16x32xf32>
// CHECK-DAG: model.cache @attention.0.values : tensor<3x16x32xf32>
// CHECK-DAG: model.cache @attention.1.keys : tensor<3x11x32xf32>
// CHECK-DAG: model.cache @attention.1.values : tensor<3x11x32xf32>

// The forward of training is unchanged.
// CHECK-LABEL: func.func @forward_2x16(
// CHECK: model.dropout
// CHECK: model.attention
// CHECK: model.head_loss

// CHECK-LABEL: func.func @forward_prefill_1x8(
// CHECK-SAME: %[[IDS:[a-z0-9]+]]: tensor<1x8xi32> {model.input = "ids"}
// CHECK-SAME: tensor<1x8xi32> {model.input = "targets"}
// CHECK-SAME: %[[POSITIONS:[a-z0-9]+]]: tensor<1x8xi32> {model.input = "positions"}
// CHECK-SAME: %[[SEGMENTS:[a-z0-9]+]]: tensor<1x8xi32> {model.input = "segments"}
// CHECK-SAME: %[[SLOTS:[a-z0-9]+]]: tensor<1x8xi32> {model.input = "slots"}
// CHECK-SAME: %[[LAST:[a-z0-9]+]]: tensor<1xi32> {model.input = "last"}
// CHECK-SAME: -> tensor<1x1x96xf32>
// CHECK-SAME: model.batch = 1 : i64, model.length = 8 : i64, model.step = "prefill"
// CHECK: %[[E:.*]] = model.weight @embed
// CHECK-NEXT: %[[X:.*]] = model.embedding %[[IDS]], %[[E]]
// CHECK-NEXT: %[[K0:.*]] = model.cache_rows @attention.0.keys, %[[X]], %[[SLOTS]], %[[POSITIONS]], %[[SEGMENTS]] {layer = 0 : i64}
// CHECK-NEXT: %[[V0:.*]] = model.cache_rows @attention.0.values, %[[X]], %[[SLOTS]], %[[POSITIONS]], %[[SEGMENTS]] {layer = 0 : i64}
// CHECK-NEXT: %[[A:.*]] = model.cached_attention %[[X]], %[[K0]], %[[V0]], %[[SLOTS]], %[[POSITIONS]], %[[SEGMENTS]] {cap = 5.000000e+01 : f64, head_dim = 8 : i64, heads = 4 : i64, kv_heads = 4 : i64, layer = 0 : i64, scale = 5.000000e-01 : f64, window = 0 : i64}
// CHECK-NEXT: %[[S:.*]] = model.weight @sinks
// CHECK-NEXT: %[[K1:.*]] = model.cache_rows @attention.1.keys, %[[A]], %[[SLOTS]],
// CHECK-NEXT: %[[V1:.*]] = model.cache_rows @attention.1.values, %[[A]], %[[SLOTS]],
// CHECK-NEXT: %[[B:.*]] = model.cached_attention %[[A]], %[[K1]], %[[V1]], %[[SLOTS]], %[[POSITIONS]], %[[SEGMENTS]] sinks %[[S]] {head_dim = 8 : i64, heads = 4 : i64, kv_heads = 4 : i64, layer = 1 : i64, scale = 5.000000e-01 : f64, window = 4 : i64}
// CHECK-NEXT: %[[TOKEN:.*]] = model.pick_tokens %[[B]], %[[LAST]] : (tensor<1x8x32xf32>, tensor<1xi32>) -> tensor<1x1x32xf32>
// CHECK-NEXT: %[[LOGITS:.*]] = model.linear %[[TOKEN]], %[[E]] : (tensor<1x1x32xf32>, tensor<96x32xf16>) -> tensor<1x1x96xf32>
// CHECK-NEXT: return %[[LOGITS]] : tensor<1x1x96xf32>

// CHECK-LABEL: func.func @forward_decode_3x1(
// CHECK-SAME: {{.*}}: tensor<3x1xi32> {model.input = "slots"}, %{{.*}}: tensor<3xi32> {model.input = "last"}) -> tensor<3x1x96xf32>
// CHECK-SAME: model.batch = 3 : i64, model.length = 1 : i64, model.step = "decode"
// CHECK-NOT: model.dropout
// CHECK: model.cache_rows @attention.0.keys, {{.*}} -> tensor<3x16x32xf32>
// CHECK: model.cache_rows @attention.1.values, {{.*}} -> tensor<3x11x32xf32>
// CHECK: model.pick_tokens {{.*}} : (tensor<3x1x32xf32>, tensor<3xi32>) -> tensor<3x1x32xf32>
// CHECK-NOT: model.head_loss
// CHECK-NOT: func.func

// The caches have the compute type, the logits are f32. An LM head that is not
// stored in bf16 has f32 rows, as in training.
// BF16: model.cache @attention.{{.*}} : tensor<3x{{.*}}x32xbf16>
// BF16: func.func @forward_decode_3x1(
// BF16: model.rows({{.*}} label = "widen", {{.*}} : (tensor<3x1x32xbf16>) -> tensor<3x1x32xf32>
// BF16: model.linear {{.*}} : (tensor<3x1x32xf32>, tensor<96x32xf16>) -> tensor<3x1x96xf32>

// F16: model.cache @attention.{{.*}} : tensor<3x{{.*}}x32xf16>
// F16: model.cache_rows {{.*}} : (tensor<1x8x32xf32>, {{.*}} -> tensor<3x16x32xf16>

// Four heads of 8 dimensions have a scale of 4 bytes each.
// INT8: model.cache @attention.{{.*}} : tensor<3x{{.*}}x48xi8>
// INT8: model.cache_rows {{.*}} : (tensor<1x8x32xf32>, {{.*}} -> tensor<3x16x48xi8>
// INT8: model.cached_attention {{.*}} : (tensor<1x8x32xf32>, tensor<3x16x48xi8>, tensor<3x16x48xi8>,

// NONE-NOT: model.cache
// NONE-NOT: model.step

model.parameter @embed : tensor<96x32xf16> {file = "a.safetensors"}
model.parameter @sinks : tensor<4xf32> {file = "a.safetensors"}
func.func @forward(%ids: tensor<?x?xi32> {model.input = "ids"}, %targets: tensor<?x?xi32> {model.input = "targets"}, %positions: tensor<?x?xi32> {model.input = "positions"}, %segments: tensor<?x?xi32> {model.input = "segments"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>) {
  %e = model.weight @embed : tensor<96x32xf16>
  %x = model.embedding %ids, %e : (tensor<?x?xi32>, tensor<96x32xf16>) -> tensor<?x?x32xf32>
  %d = model.dropout %x {probability = 0.1 : f64, id = 0} : tensor<?x?x32xf32>
  %a, %la = model.attention %d, %d, %d, %segments {heads = 4, kv_heads = 4, head_dim = 8, window = 0, scale = 0.5 : f64, cap = 50.0 : f64, layer = 0} : (tensor<?x?x32xf32>, tensor<?x?x32xf32>, tensor<?x?x32xf32>, tensor<?x?xi32>) -> (tensor<?x?x32xf32>, tensor<?x4x?xf32>)
  %s = model.weight @sinks : tensor<4xf32>
  %b, %lb = model.attention %a, %a, %a, %segments sinks %s {heads = 4, kv_heads = 4, head_dim = 8, window = 4, scale = 0.5 : f64, layer = 1} : (tensor<?x?x32xf32>, tensor<?x?x32xf32>, tensor<?x?x32xf32>, tensor<?x?xi32>, tensor<4xf32>) -> (tensor<?x?x32xf32>, tensor<?x4x?xf32>)
  %loss, %count, %correct = model.head_loss %b, %e, %targets : (tensor<?x?x32xf32>, tensor<96x32xf16>, tensor<?x?xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>
}

// -----

// RoPE has other frequencies for rows of more than 12 tokens (longrope). The
// windows hold a whole row, or nearly.

// CHECK: module attributes {model.restart_length = 12 : i64}
// CHECK-DAG: model.cache @attention.0.keys : tensor<3x22x32xf32>
// CHECK-DAG: model.cache @attention.1.keys : tensor<3x16x32xf32>
// CHECK-LABEL: func.func @forward_prefill_1x8(
// CHECK-SAME: %[[LENGTHS:[a-z0-9]+]]: tensor<1x8xi32> {model.input = "lengths"}
// CHECK: model.rope_table %{{.*}}, %[[LENGTHS]]
// CHECK: model.cached_attention {{.*}} window = 15 : i64}
// CHECK: model.cached_attention {{.*}} window = 0 : i64}
// CHECK: %[[RAW:.*]] = model.linear
// The logits are capped as in the loss.
// CHECK-NEXT: %[[CAPPED:.*]] = model.rows(%[[RAW]]) attributes {columns = 96 : i64, label = "cap", maps = [#model.map<full>]} : (tensor<1x1x96xf32>) -> tensor<1x1x96xf32>
// CHECK: arith.constant 0.0333333351 : f32
// CHECK: math.tanh
// CHECK: arith.constant 3.000000e+01 : f32
// CHECK: return %[[CAPPED]]

// No row is longer than 12 tokens here.
// SHORT-NOT: restart_length

model.parameter @embed : tensor<96x32xf16> {file = "a.safetensors"}
func.func @forward(%ids: tensor<?x?xi32> {model.input = "ids"}, %targets: tensor<?x?xi32> {model.input = "targets"}, %positions: tensor<?x?xi32> {model.input = "positions"}, %segments: tensor<?x?xi32> {model.input = "segments"}, %lengths: tensor<?x?xi32> {model.input = "lengths"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>) {
  %e = model.weight @embed : tensor<96x32xf16>
  %x = model.embedding %ids, %e : (tensor<?x?xi32>, tensor<96x32xf16>) -> tensor<?x?x32xf32>
  %cos, %sin = model.rope_table %positions, %lengths {frequencies = array<f32: 1.0, 0.5, 1.0, 0.5>, long_frequencies = array<f32: 0.5, 0.1, 0.5, 0.1>, original_length = 12, attention_factor = 1.0 : f64} : (tensor<?x?xi32>, tensor<?x?xi32>) -> (tensor<?x?x8xf32>, tensor<?x?x8xf32>)
  %q = model.rope %x, %cos, %sin : (tensor<?x?x32xf32>, tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x32xf32>
  %a, %la = model.attention %q, %q, %x, %segments {heads = 4, kv_heads = 4, head_dim = 8, window = 15, scale = 0.5 : f64} : (tensor<?x?x32xf32>, tensor<?x?x32xf32>, tensor<?x?x32xf32>, tensor<?x?xi32>) -> (tensor<?x?x32xf32>, tensor<?x4x?xf32>)
  %b, %lb = model.attention %a, %a, %a, %segments {heads = 4, kv_heads = 4, head_dim = 8, window = 16, scale = 0.5 : f64} : (tensor<?x?x32xf32>, tensor<?x?x32xf32>, tensor<?x?x32xf32>, tensor<?x?xi32>) -> (tensor<?x?x32xf32>, tensor<?x4x?xf32>)
  %loss, %count, %correct = model.head_loss %b, %e, %targets {cap = 30.0 : f64} : (tensor<?x?x32xf32>, tensor<96x32xf16>, tensor<?x?xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>
}
