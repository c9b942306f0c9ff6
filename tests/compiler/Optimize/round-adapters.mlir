// SPDX-License-Identifier: MIT

// Trainable weights are rounded when they change, not when they are read.

// RUN: qlora-opt %s --round-adapters | FileCheck %s
// RUN: qlora-opt %s --round-adapters --fuse-rows --bucket-gradients --lower-to-program | FileCheck %s --check-prefix=PROGRAM

model.parameter @a : tensor<8x64xf32> {init = "kaiming", trainable}
model.parameter @table : tensor<16x64xf32> {trainable, file = "m.safetensors"}
model.parameter @w : tensor<64x8xf32> {file = "m.safetensors"}

// CHECK-LABEL: train.step accumulate
// PROGRAM-DAG: program.arena trainable bytes 12288
// PROGRAM-DAG: program.arena rounded bytes 6144
// PROGRAM: program.entry accumulate_last
train.step accumulate batch 1 length 3 ["ids"] {
^bb0(%ids: tensor<1x3xi32>):
  // An embedding table is read without a rounded copy.
  // CHECK: %[[TABLE:.*]] = model.weight @table : tensor<16x64xf32>
  // CHECK: %[[X:.*]] = model.embedding %{{.*}}, %[[TABLE]]
  %table = model.weight @table : tensor<16x64xf32>
  %x = model.embedding %ids, %table : (tensor<1x3xi32>, tensor<16x64xf32>) -> tensor<1x3x64xbf16>
  // Forward and backward read one rounded copy. A frozen weight has none, and a
  // matmul in f32 needs none.
  // CHECK-DAG: %[[EXACT:.*]] = model.weight @a : tensor<8x64xf32>
  // CHECK-DAG: %[[A:.*]] = model.weight @a {rounded} : tensor<8x64xbf16>
  // CHECK: %[[Y:.*]] = model.linear %[[X]], %[[A]] : (tensor<1x3x64xbf16>, tensor<8x64xbf16>)
  // CHECK: model.linear %[[Y]], %{{.*}} : (tensor<1x3x8xbf16>, tensor<64x8xf32>)
  // CHECK: model.linear %{{.*}}, %[[EXACT]] : (tensor<1x3x64xf32>
  // CHECK: model.linear %[[Y]], %[[A]] layout in_out
  // PROGRAM: program.buffer rounded offset
  // PROGRAM: program.launch @matmul
  %a = model.weight @a : tensor<8x64xf32>
  %y = model.linear %x, %a : (tensor<1x3x64xbf16>, tensor<8x64xf32>) -> tensor<1x3x8xbf16>
  %w = model.weight @w : tensor<64x8xf32>
  %z = model.linear %y, %w : (tensor<1x3x8xbf16>, tensor<64x8xf32>) -> tensor<1x3x64xbf16>
  %xf = model.embedding %ids, %table : (tensor<1x3xi32>, tensor<16x64xf32>) -> tensor<1x3x64xf32>
  %yf = model.linear %xf, %a : (tensor<1x3x64xf32>, tensor<8x64xf32>) -> tensor<1x3x8xf32>
  %dx = model.linear %y, %a layout in_out {phase = #model.phase<backward>} : (tensor<1x3x8xbf16>, tensor<8x64xf32>) -> tensor<1x3x64xbf16>
  %da = train.linear_weight_grad %y, %z {phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x3x8xbf16>, tensor<1x3x64xbf16>) -> tensor<8x64xf32>
  train.accumulate @a, %da {phase = #model.phase<backward>} : tensor<8x64xf32>
  %dt = train.embedding_grad %ids, %dx {phase = #model.phase<backward>} : (tensor<1x3xi32>, tensor<1x3x64xbf16>) -> tensor<16x64xf32>
  train.accumulate @table, %dt {phase = #model.phase<backward>} : tensor<16x64xf32>
}

// The update writes the f32 weight and its rounded copy.
// CHECK-LABEL: train.step update
// CHECK: %[[NEW:.*]], %{{.*}}:2 = train.adamw
// CHECK: %[[ROUNDED:.*]] = train.round %[[NEW]] : (tensor<2x1024xf32>) -> tensor<2x1024xbf16>
// CHECK-DAG: train.store_flat rounded, %[[ROUNDED]] : tensor<2x1024xbf16>
// CHECK-DAG: train.store_flat trainable, %[[NEW]] : tensor<2x1024xf32>
// PROGRAM: program.entry update
// PROGRAM: program.buffer rounded offset 2048 bytes 4096
train.step update batch 0 length 0 [] {
  %p = train.flat trainable : tensor<2x1024xf32>
  %m = train.flat state : tensor<2x1024xf32>
  %v = train.flat state {row = 8192} : tensor<2x1024xf32>
  %g = train.flat gradient : tensor<2x1024xf32>
  %all = train.flat gradient {statistics} : tensor<3x1024xf32>
  %norm, %scale = train.clip_norm %all : (tensor<3x1024xf32>) -> (tensor<1xf32>, tensor<1xf32>)
  %np, %nm, %nv = train.adamw %p, %m, %v, %g, %scale : (tensor<2x1024xf32>, tensor<2x1024xf32>, tensor<2x1024xf32>, tensor<2x1024xf32>, tensor<1xf32>) -> (tensor<2x1024xf32>, tensor<2x1024xf32>, tensor<2x1024xf32>)
  train.store_flat trainable, %np : tensor<2x1024xf32>
  train.store_flat state, %nm : tensor<2x1024xf32>
  train.store_flat state, %nv {row = 8192} : tensor<2x1024xf32>
}
