// SPDX-License-Identifier: MIT

// Sharded trainable weights are gathered like frozen ones; if there is a
// rounded copy, it is gathered instead. With keep-trained they are gathered
// once per step.

// RUN: qlora-opt %s --place-frozen-weights | FileCheck %s
// RUN: qlora-opt %s --place-frozen-weights=keep-trained | FileCheck %s --check-prefix=KEPT
// RUN: qlora-opt %s --place-frozen-weights=keep-trained --schedule-gathers | FileCheck %s --check-prefix=AHEAD

// CHECK: gathers = 4 : i64, host_bytes = 0 : i64, kept_bytes = 0 : i64, piece_bytes = 0 : i64, shards = 1 : i64, staying_bytes = 0 : i64, trained = 2 : i64, weights = 0
// CHECK: %[[W:.*]] = model.gather_weight @w {layer = 0 : i64, rounded} : tensor<128x128xbf16>
// CHECK-NEXT: model.linear %{{.*}}, %[[W]] {layer = 0
// CHECK: %[[V:.*]] = model.gather_weight @v {layer = 1 : i64} : tensor<128x128xf32>
// CHECK-NEXT: model.linear %{{.*}}, %[[V]] {layer = 1
// CHECK: %[[V2:.*]] = model.gather_weight @v {layer = 1 : i64, phase = #model.phase<backward>}
// CHECK-NEXT: model.linear %{{.*}}, %[[V2]] layout in_out
// CHECK: %[[W2:.*]] = model.gather_weight @w {layer = 0 : i64, phase = #model.phase<backward>, rounded}
// CHECK-NEXT: model.linear %{{.*}}, %[[W2]] layout in_out
// CHECK-NOT: model.weight @w

// KEPT: gathers = 2
// KEPT: %[[W:.*]] = model.gather_weight @w
// KEPT: %[[V:.*]] = model.gather_weight @v
// KEPT: model.linear %{{.*}}, %[[V]] layout in_out
// KEPT: model.linear %{{.*}}, %[[W]] layout in_out

// The gather of another weight does not wait for the uses of a weight that
// stays gathered.
// AHEAD: model.gather_weight @w
// AHEAD-NEXT: model.gather_weight @v
// AHEAD: model.embedding

module attributes {model.mesh = #model.mesh<zero2 = 3>} {
model.parameter @table : tensor<128x128xf32> {file = "m.safetensors"}
model.parameter @w : tensor<128x128xf32> {file = "m.safetensors", trainable, piece = 21888}
model.parameter @v : tensor<128x128xf32> {file = "m.safetensors", trainable, piece = 21888}

train.step accumulate batch 1 length 64 ["ids"] {
^bb0(%ids: tensor<1x64xi32>):
  %table = model.weight @table : tensor<128x128xf32>
  %w = model.weight @w {rounded} : tensor<128x128xbf16>
  %v = model.weight @v : tensor<128x128xf32>
  %x = model.embedding %ids, %table : (tensor<1x64xi32>, tensor<128x128xf32>) -> tensor<1x64x128xf32>
  %y = model.linear %x, %w {layer = 0 : i64} : (tensor<1x64x128xf32>, tensor<128x128xbf16>) -> tensor<1x64x128xf32>
  %z = model.linear %y, %v {layer = 1 : i64} : (tensor<1x64x128xf32>, tensor<128x128xf32>) -> tensor<1x64x128xf32>
  %d1 = model.linear %z, %v layout in_out {layer = 1 : i64, phase = #model.phase<backward>} : (tensor<1x64x128xf32>, tensor<128x128xf32>) -> tensor<1x64x128xf32>
  %d0 = model.linear %d1, %w layout in_out {layer = 0 : i64, phase = #model.phase<backward>} : (tensor<1x64x128xf32>, tensor<128x128xbf16>) -> tensor<1x64x128xf32>
  train.result "loss_sum", %d0 {phase = #model.phase<backward>} : tensor<1x64x128xf32>
}
}
