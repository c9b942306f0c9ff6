// SPDX-License-Identifier: MIT

// One copy per length and token bucket. Batch, length and compute type are
// fixed for values of [B, T, ...]; everything else is unchanged.

// RUN: qlora-opt %s --specialize-shapes="batch=2 lengths=16,32 compute-type=bfloat16" | FileCheck %s
// RUN: qlora-opt %s --specialize-shapes="batch=1 lengths=8" | FileCheck %s --check-prefix=F32
// RUN: qlora-opt %s --specialize-shapes="batch=2 lengths=16 buckets=16,32" | FileCheck %s --check-prefix=BUCKETS
// RUN: qlora-opt %s --specialize-shapes="batch=1 lengths=16 buckets=16,8" | FileCheck %s --check-prefix=ONE
// RUN: qlora-opt %s --specialize-shapes="batch=2 lengths=16 buckets=32 generation=3,8" | FileCheck %s --check-prefix=GENERATION

model.parameter @embed : tensor<96x32xf16> {file = "a.safetensors"}

// CHECK-LABEL: func.func @forward_2x16(
// CHECK-SAME: %[[IDS:.*]]: tensor<2x16xi32> {model.input = "ids"}
// CHECK-SAME: -> (tensor<1xf32>, tensor<1xf32>, tensor<2x16xi32>)
// CHECK-SAME: model.batch = 2 : i64, model.length = 16 : i64
// Weights keep their type, and so does the loss.
// CHECK: %[[E:.*]] = model.weight @embed : tensor<96x32xf16>
// CHECK: %[[X:.*]] = model.embedding %[[IDS]], %[[E]] : {{.*}} -> tensor<2x16x32xbf16>
// The log-sum-exp stays f32, because its exponential needs all digits.
// CHECK: model.attention {{.*}} -> (tensor<2x16x32xbf16>, tensor<2x4x16xf32>)
// CHECK: model.rows({{.*}} : (tensor<2x16x32xbf16>) -> tensor<2x16x32xbf16>
// CHECK-NEXT: ^bb0(%{{.*}}: tensor<8xf32>):
// CHECK: model.head_loss {{.*}} -> (tensor<1xf32>, tensor<1xf32>, tensor<2x16xi32>)

// CHECK-LABEL: func.func @forward_2x32(
// CHECK: model.embedding {{.*}} -> tensor<2x32x32xbf16>

// The function with dynamic shapes is removed.
// CHECK-NOT: func.func

// F32-LABEL: func.func @forward_1x8(
// F32: model.embedding {{.*}} -> tensor<1x8x32xf32>

// BUCKETS: func.func @forward_2x16(
// BUCKETS: func.func @forward_1x16(
// BUCKETS: func.func @forward_1x32(
// BUCKETS: model.embedding {{.*}} -> tensor<1x32x32xf32>

// GENERATION: func.func @forward_2x16(
// GENERATION-NOT: model.step
// GENERATION: func.func @forward_1x32(
// GENERATION: func.func @forward_prefill_1x8({{.*}}{model.batch = 1 : i64, model.length = 8 : i64, model.step = "prefill"
// GENERATION: func.func @forward_decode_3x1({{.*}}{model.batch = 3 : i64, model.length = 1 : i64, model.step = "decode"
// GENERATION: model.embedding {{.*}} -> tensor<3x1x32xf32>
// GENERATION-NOT: func.func

// A bucket that equals a length gets no second function.
// ONE: func.func @forward_1x16(
// ONE: func.func @forward_1x8(
// ONE-NOT: func.func
func.func @forward(%ids: tensor<?x?xi32> {model.input = "ids"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>) {
  %e = model.weight @embed : tensor<96x32xf16>
  %x = model.embedding %ids, %e : (tensor<?x?xi32>, tensor<96x32xf16>) -> tensor<?x?x32xf32>
  %a, %lse = model.attention %x, %x, %x, %ids {heads = 4, kv_heads = 4, head_dim = 8, window = 0, scale = 1.0 : f64} : (tensor<?x?x32xf32>, tensor<?x?x32xf32>, tensor<?x?x32xf32>, tensor<?x?xi32>) -> (tensor<?x?x32xf32>, tensor<?x4x?xf32>)
  %y = model.rows(%a) attributes {columns = 8, maps = [#model.map<full>]} : (tensor<?x?x32xf32>) -> tensor<?x?x32xf32> {
  ^bb0(%0: tensor<8xf32>):
    %1 = arith.addf %0, %0 : tensor<8xf32>
    model.row_yield %1 : tensor<8xf32>
  }
  %loss, %count, %correct = model.head_loss %y, %e, %ids : (tensor<?x?x32xf32>, tensor<96x32xf16>, tensor<?x?xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>
}
