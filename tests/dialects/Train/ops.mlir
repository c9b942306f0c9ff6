// SPDX-License-Identifier: MIT

// Every op of the train dialect can be printed and parsed again.

// RUN: qlora-opt %s | qlora-opt | FileCheck %s
// RUN: qlora-opt %s --mlir-print-op-generic | qlora-opt | FileCheck %s

model.parameter @w : tensor<8x64x!model.quantized<nf4, 64, true>> {file = "a.safetensors"}
model.parameter @a : tensor<8x64xf32> {init = "zero", trainable}
model.parameter @pieces : tensor<8x64xf32> {init = "zero", trainable, piece = 704}

// CHECK: train.step accumulate batch 2 length 4 ["ids"] {
// CHECK-NEXT: ^bb0(%[[IDS:.*]]: tensor<2x4xi32>):
train.step accumulate batch 2 length 4 ["ids"] {
^bb0(%ids: tensor<2x4xi32>):
  %w = model.weight @w : tensor<8x64x!model.quantized<nf4, 64, true>>
  %a = model.weight @a : tensor<8x64xf32>
  // CHECK: %[[W:.*]] = train.decode %{{.*}} : (tensor<8x64x!model.quantized<nf4, 64, true>>) -> tensor<8x64xf32>
  %d = train.decode %w : (tensor<8x64x!model.quantized<nf4, 64, true>>) -> tensor<8x64xf32>
  %x = model.embedding %ids, %a : (tensor<2x4xi32>, tensor<8x64xf32>) -> tensor<2x4x64xf32>
  // CHECK: %[[LOSS:.*]], %[[COUNT:.*]], %[[CORRECT:.*]], %[[DX:.*]], %[[DW:.*]] = train.head_loss_grad %{{.*}}, %[[W]], %[[IDS]] : (tensor<2x4x64xf32>, tensor<8x64xf32>, tensor<2x4xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x4xi32>, tensor<2x4x64xf32>, tensor<8x64xf32>)
  %loss, %count, %correct, %dx, %dw = train.head_loss_grad %x, %d, %ids : (tensor<2x4x64xf32>, tensor<8x64xf32>, tensor<2x4xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x4xi32>, tensor<2x4x64xf32>, tensor<8x64xf32>)
  // CHECK: train.result "loss_sum", %[[LOSS]] {accumulate} : tensor<1xf32>
  train.result "loss_sum", %loss {accumulate} : tensor<1xf32>
  // CHECK: train.result "correct", %[[CORRECT]] : tensor<2x4xi32>
  train.result "correct", %correct : tensor<2x4xi32>
  %y = model.linear %dx, %d : (tensor<2x4x64xf32>, tensor<8x64xf32>) -> tensor<2x4x8xf32>
  %h = model.linear %y, %a layout in_out : (tensor<2x4x8xf32>, tensor<8x64xf32>) -> tensor<2x4x64xf32>
  // CHECK: %[[V:.*]] = train.linear_weight_grad %{{.*}}, %{{.*}} init %[[DW]] {scale = 1.000000e+00 : f64} : (tensor<2x4x8xf32>, tensor<2x4x64xf32>, tensor<8x64xf32>) -> tensor<8x64xf32>
  %v = train.linear_weight_grad %y, %x init %dw {scale = 1.0 : f64} : (tensor<2x4x8xf32>, tensor<2x4x64xf32>, tensor<8x64xf32>) -> tensor<8x64xf32>
  // CHECK: train.embedding_grad %[[IDS]], %{{.*}} {padding = 3 : i64, turned} : (tensor<2x4xi32>, tensor<2x4x64xf32>) -> tensor<64x8xf32>
  %turned = train.embedding_grad %ids, %h {padding = 3 : i64, turned} : (tensor<2x4xi32>, tensor<2x4x64xf32>) -> tensor<64x8xf32>
  // CHECK: train.embedding_grad %[[IDS]], %{{.*}} : (tensor<2x4xi32>, tensor<2x4x64xf32>) -> tensor<8x64xf32>
  %e = train.embedding_grad %ids, %h : (tensor<2x4xi32>, tensor<2x4x64xf32>) -> tensor<8x64xf32>
  // CHECK: model.column_sum %{{.*}} : (tensor<2x4x64xf32>) -> tensor<64xf32>
  %c = model.column_sum %h : (tensor<2x4x64xf32>) -> tensor<64xf32>
  %o, %lse = model.attention %x, %x, %x, %ids {heads = 8, kv_heads = 8, head_dim = 8, window = 0, scale = 1.0 : f64} : (tensor<2x4x64xf32>, tensor<2x4x64xf32>, tensor<2x4x64xf32>, tensor<2x4xi32>) -> (tensor<2x4x64xf32>, tensor<2x8x4xf32>)
  // CHECK: train.attention_grad %{{.*}}, %{{.*}}, %{{.*}}, %[[IDS]], %{{.*}}, %{{.*}}, %{{.*}} {head_dim = 8 : i64, heads = 8 : i64, kv_heads = 8 : i64, scale = 1.000000e+00 : f64, window = 0 : i64}
  %dq, %dk, %dv = train.attention_grad %x, %x, %x, %ids, %o, %lse, %h {heads = 8, kv_heads = 8, head_dim = 8, window = 0, scale = 1.0 : f64} : (tensor<2x4x64xf32>, tensor<2x4x64xf32>, tensor<2x4x64xf32>, tensor<2x4xi32>, tensor<2x4x64xf32>, tensor<2x8x4xf32>, tensor<2x4x64xf32>) -> (tensor<2x4x64xf32>, tensor<2x4x64xf32>, tensor<2x4x64xf32>)
  // CHECK: %[[CODES:.*]], %[[SCALES:.*]] = train.encode_rows %{{.*}} : (tensor<2x4x64xf32>) -> (tensor<2x4x64xi8>, tensor<2x4x1xf32>)
  %codes, %scales = train.encode_rows %x : (tensor<2x4x64xf32>) -> (tensor<2x4x64xi8>, tensor<2x4x1xf32>)
  // CHECK: train.decode_rows %[[CODES]], %[[SCALES]] : (tensor<2x4x64xi8>, tensor<2x4x1xf32>) -> tensor<2x4x64xf32>
  %again = train.decode_rows %codes, %scales : (tensor<2x4x64xi8>, tensor<2x4x1xf32>) -> tensor<2x4x64xf32>
  // CHECK: train.left_by_codes %{{.*}}, %[[CODES]], %[[SCALES]] : (tensor<2x4x64xf32>, tensor<2x4x64xi8>, tensor<2x4x1xf32>) -> tensor<2x4x64xf32>
  %left = train.left_by_codes %x, %codes, %scales : (tensor<2x4x64xf32>, tensor<2x4x64xi8>, tensor<2x4x1xf32>) -> tensor<2x4x64xf32>
  // CHECK: %[[HOST:.*]] = train.copy_to_host %{{.*}} behind 3 {layer = 1 : i64} : tensor<2x4x64xf32>
  %host = train.copy_to_host %x behind 3 {layer = 1 : i64} : tensor<2x4x64xf32>
  // CHECK: train.copy_from_host %[[HOST]] : tensor<2x4x64xf32>
  %back = train.copy_from_host %host : tensor<2x4x64xf32>
  // CHECK: train.accumulate @a, %[[V]] : tensor<8x64xf32>
  train.accumulate @a, %v : tensor<8x64xf32>
  // CHECK: %[[PIECE:.*]] = train.scatter_gradient @pieces, %[[V]] : (tensor<8x64xf32>) -> tensor<176xf32>
  %piece = train.scatter_gradient @pieces, %v : (tensor<8x64xf32>) -> tensor<176xf32>
  // CHECK: train.accumulate @pieces, %[[PIECE]] : tensor<176xf32>
  train.accumulate @pieces, %piece : tensor<176xf32>
  // CHECK: train.all_reduce 0 offset 2048 elements 1024 {pieces}
  train.all_reduce 0 offset 2048 elements 1024 {pieces}
  // CHECK: train.all_reduce 0 offset 1024 elements 512
  train.all_reduce 0 offset 1024 elements 512
}

// CHECK: train.step evaluate batch 2 length 4 [] {
train.step evaluate batch 2 length 4 [] {
}

// CHECK: train.step prefill batch 1 length 8 ["ids", "slots", "last"] {
// CHECK-NEXT: ^bb0(%[[IDS:.*]]: tensor<1x8xi32>, %{{.*}}: tensor<1x8xi32>, %[[LAST:.*]]: tensor<1xi32>):
train.step prefill batch 1 length 8 ["ids", "slots", "last"] {
^bb0(%ids: tensor<1x8xi32>, %slots: tensor<1x8xi32>, %last: tensor<1xi32>):
  %a = model.weight @a : tensor<8x64xf32>
  %x = model.embedding %ids, %a : (tensor<1x8xi32>, tensor<8x64xf32>) -> tensor<1x8x64xf32>
  %y = model.pick_tokens %x, %last : (tensor<1x8x64xf32>, tensor<1xi32>) -> tensor<1x1x64xf32>
  // CHECK: train.result "logits", %{{.*}} : tensor<1x1x64xf32>
  train.result "logits", %y : tensor<1x1x64xf32>
}

// CHECK: train.step decode batch 3 length 1 [] {
train.step decode batch 3 length 1 [] {
}

// The statistics row and 512 elements of @a take two rows of 1024.
// CHECK: train.step update batch 0 length 0 [] {
train.step update batch 0 length 0 [] {
  // CHECK: %[[ALL:.*]] = train.flat gradient {statistics} : tensor<2x1024xf32>
  %all = train.flat gradient {statistics} : tensor<2x1024xf32>
  // CHECK: %[[NORM:.*]], %[[SCALE:.*]] = train.clip_norm %[[ALL]] : (tensor<2x1024xf32>) -> (tensor<1xf32>, tensor<1xf32>)
  %norm, %scale = train.clip_norm %all : (tensor<2x1024xf32>) -> (tensor<1xf32>, tensor<1xf32>)
  // CHECK: %[[LENGTH:.*]] = train.length %{{.*}} : (tensor<2x1024xf32>) -> tensor<1xf32>
  %length = train.length %all : (tensor<2x1024xf32>) -> tensor<1xf32>
  // CHECK: train.clip_norm %[[ALL]], %[[LENGTH]] : (tensor<2x1024xf32>, tensor<1xf32>) -> (tensor<1xf32>, tensor<1xf32>)
  %norm2, %scale2 = train.clip_norm %all, %length : (tensor<2x1024xf32>, tensor<1xf32>) -> (tensor<1xf32>, tensor<1xf32>)
  // CHECK: %[[P:.*]] = train.flat trainable : tensor<1x1024xf32>
  %p = train.flat trainable : tensor<1x1024xf32>
  // CHECK: %[[M:.*]] = train.flat state : tensor<1x1024xf32>
  %m = train.flat state : tensor<1x1024xf32>
  // CHECK: %[[V2:.*]] = train.flat state {row = 4096 : i64} : tensor<1x1024xf32>
  %v = train.flat state {row = 4096} : tensor<1x1024xf32>
  %g = train.flat gradient : tensor<1x1024xf32>
  // CHECK: %[[NEW:.*]], %{{.*}}:2 = train.adamw %[[P]], %[[M]], %[[V2]], %{{.*}}, %[[SCALE]]
  %q, %m1, %v1 = train.adamw %p, %m, %v, %g, %scale : (tensor<1x1024xf32>, tensor<1x1024xf32>, tensor<1x1024xf32>, tensor<1x1024xf32>, tensor<1xf32>) -> (tensor<1x1024xf32>, tensor<1x1024xf32>, tensor<1x1024xf32>)
  // CHECK: train.store_flat trainable, %[[NEW]] : tensor<1x1024xf32>
  train.store_flat trainable, %q : tensor<1x1024xf32>
  // CHECK: train.lion
  %l, %ml = train.lion %p, %m, %g, %scale {rate_scale = 2.0} : (tensor<1x1024xf32>, tensor<1x1024xf32>, tensor<1x1024xf32>, tensor<1xf32>) -> (tensor<1x1024xf32>, tensor<1x1024xf32>)
  // CHECK: train.rmsprop %{{.*}} {undecayed}
  %s, %vs = train.rmsprop %p, %v, %g, %scale {undecayed} : (tensor<1x1024xf32>, tensor<1x1024xf32>, tensor<1x1024xf32>, tensor<1xf32>) -> (tensor<1x1024xf32>, tensor<1x1024xf32>)
  // CHECK: train.schedule_free
  %y, %z, %vz = train.schedule_free %p, %m, %v, %g, %scale {undecayed} : (tensor<1x1024xf32>, tensor<1x1024xf32>, tensor<1x1024xf32>, tensor<1x1024xf32>, tensor<1xf32>) -> (tensor<1x1024xf32>, tensor<1x1024xf32>, tensor<1x1024xf32>)
  // CHECK: train.schedule_free_switch %{{.*}}, %{{.*}} {back}
  %x = train.schedule_free_switch %y, %z {back} : (tensor<1x1024xf32>, tensor<1x1024xf32>) -> tensor<1x1024xf32>
  // CHECK: train.round %{{.*}} : (tensor<1x1024xf32>) -> tensor<1x1024xbf16>
  %r = train.round %x : (tensor<1x1024xf32>) -> tensor<1x1024xbf16>
  // CHECK: %[[A:.*]] = train.flat trainable @a : tensor<8x64xf32>
  %a = train.flat trainable @a : tensor<8x64xf32>
  %s1 = train.flat state {row = 8192} : tensor<8x64xui8>
  %s2 = train.flat state {row = 8704} : tensor<8x64xui8>
  %a1 = train.flat state {row = 9216} : tensor<2xf32>
  %a2 = train.flat state {row = 9280} : tensor<2xf32>
  %ga = train.flat gradient @a : tensor<8x64xf32>
  // CHECK: train.update "adamw_8bit" %[[A]],
  %u:5 = train.update "adamw_8bit" %a, %s1, %s2, %a1, %a2, %ga, %scale : (tensor<8x64xf32>, tensor<8x64xui8>, tensor<8x64xui8>, tensor<2xf32>, tensor<2xf32>, tensor<8x64xf32>, tensor<1xf32>) -> (tensor<8x64xf32>, tensor<8x64xui8>, tensor<8x64xui8>, tensor<2xf32>, tensor<2xf32>)
  // CHECK: train.store_flat trainable @a, %{{.*}} : tensor<8x64xf32>
  train.store_flat trainable @a, %u#0 : tensor<8x64xf32>
  // CHECK: train.clear gradient
  train.clear gradient
}
