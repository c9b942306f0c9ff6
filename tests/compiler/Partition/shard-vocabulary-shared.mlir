// SPDX-License-Identifier: MIT

// Shards embedding tables if tensor-parallel ranks compute the same tokens.

// RUN: qlora-opt %s --shard-vocabulary | FileCheck %s
// RUN: qlora-opt %s --shard-vocabulary=form=true | FileCheck %s --check-prefix=ALWAYS
// RUN: qlora-opt %s --shard-vocabulary=form=false | FileCheck %s --check-prefix=NEVER

// NEVER-NOT: slice

// A table is sliced by rows if its number of rows is divisible by the ranks, and
// no result that must be all-reduced has more bytes than the table.
// CHECK-DAG: model.parameter @words : tensor<500x64xbf16> {{.*}}slice = #model.slice<2, 0, [1000]>
// CHECK-DAG: model.parameter @seen : tensor<1000x64xbf16> {{.*}}slice = #model.slice<2, 0, [2000]>
// CHECK-DAG: model.parameter @odd : tensor<1001x64xbf16> {file = "m.safetensors"}
// CHECK-DAG: model.parameter @few : tensor<4x64xbf16> {file = "m.safetensors"}
// ALWAYS-DAG: model.parameter @odd : tensor<1001x64xbf16> {file = "m.safetensors"}
// ALWAYS-DAG: model.parameter @few : tensor<2x64xbf16> {{.*}}slice = #model.slice<2, 0, [4]>

// CHECK: %[[S:.*]] = model.weight @seen : tensor<1000x64xbf16>
// CHECK-NEXT: %[[Y:.*]] = model.embedding %arg0, %[[S]] {words = 2000 : i64} : (tensor<2x8xi32>, tensor<1000x64xbf16>) -> tensor<2x8x64xbf16>
// CHECK-NEXT: %[[X:.*]] = model.all_sum %[[Y]]

// Each rank has all rows of the loss, and a partial sum of the gradient.
// CHECK: %[[W:.*]] = model.weight @words {phase = #model.phase<backward>} : tensor<500x64xbf16>
// CHECK-NEXT: %[[STATES:.*]], %[[G:.*]] = model.head_part %{{.*}}, %[[W]], %arg1 {{.*}}words = 1000
// CHECK-NEXT: %[[ALL:.*]] = model.all_gather %[[STATES]] {{.*}}ranks{{.*}}tp{{.*}} (tensor<2x8x4xf32>) -> tensor<4x8x4xf32>
// CHECK-NEXT: %{{.*}}, %{{.*}}, %{{.*}}, %[[D:.*]] = model.head_merge %[[ALL]], %arg1, %[[G]], %[[W]] {{.*}} -> (tensor<1xf32>, tensor<1xf32>, tensor<2x8xi32>, tensor<2x8x64xf32>)
// CHECK-NEXT: %[[DS:.*]] = model.all_sum %[[D]]
// CHECK-NEXT: train.round %[[DS]]

module attributes {model.mesh = #model.mesh<tp = 2>} {
model.parameter @words : tensor<1000x64xbf16> {file = "m.safetensors"}
model.parameter @seen : tensor<2000x64xbf16> {file = "m.safetensors"}
model.parameter @odd : tensor<1001x64xbf16> {file = "m.safetensors"}
model.parameter @few : tensor<4x64xbf16> {file = "m.safetensors"}

train.step accumulate batch 2 length 8 ["ids", "targets"] {
^bb0(%ids: tensor<2x8xi32>, %targets: tensor<2x8xi32>):
  %seen = model.weight @seen : tensor<2000x64xbf16>
  %x = model.embedding %ids, %seen : (tensor<2x8xi32>, tensor<2000x64xbf16>) -> tensor<2x8x64xbf16>
  %odd = model.weight @odd : tensor<1001x64xbf16>
  %y = model.embedding %ids, %odd : (tensor<2x8xi32>, tensor<1001x64xbf16>) -> tensor<2x8x64xbf16>
  %few = model.weight @few : tensor<4x64xbf16>
  %z = model.embedding %ids, %few : (tensor<2x8xi32>, tensor<4x64xbf16>) -> tensor<2x8x64xbf16>
  %w = model.weight @words : tensor<1000x64xbf16>
  %loss, %count, %correct, %dx = train.head_loss_grad %x, %w, %targets {phase = #model.phase<backward>} : (tensor<2x8x64xbf16>, tensor<1000x64xbf16>, tensor<2x8xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x8xi32>, tensor<2x8x64xbf16>)
}
}
