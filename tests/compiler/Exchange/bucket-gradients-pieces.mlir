// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --bucket-gradients="min-bytes=0 gradient-buckets=2" | FileCheck %s

// Unsharded parameters come first, whatever the backward finishes first: c has
// 16 elements from 1024 on, in a row of its own. Shards follow, a with 16 and b
// with 1024 elements. Unsharded gradients are reduced over all ranks, shards
// over the ranks that hold the same shard.
// CHECK: train.flat_elements = 4096 : i64
// CHECK-SAME: train.layout = [@c, @b, @a]
// CHECK-SAME: train.offsets = array<i64: 1024, 2048, 3072>
// CHECK: train.accumulate @b
// CHECK: train.accumulate @a
// CHECK-NEXT: train.all_reduce 0 offset 0 elements 1024 {phase = #model.phase<exchange>}
// CHECK-NEXT: train.all_reduce 0 offset 2048 elements 1040 {phase = #model.phase<exchange>, pieces}
// CHECK-NEXT: train.accumulate @c
// CHECK-NEXT: train.all_reduce 1 offset 1024 elements 1024 {phase = #model.phase<exchange>}
// CHECK-NEXT: train.all_reduce 1 offset 3088 elements 1008 {phase = #model.phase<exchange>, pieces}

module attributes {model.mesh = #model.mesh<zero2 = 2>} {
model.parameter @a : tensor<2x16xf32> {init = "zero", trainable, piece = 64}
model.parameter @b : tensor<64x32xf32> {init = "zero", trainable, piece = 4096}
model.parameter @c : tensor<16xf32> {init = "zero", trainable}

train.step accumulate batch 1 length 4 ["ids"] {
^bb0(%ids: tensor<1x4xi32>):
  %b = model.gather_weight @b : tensor<64x32xf32>
  %a = model.gather_weight @a : tensor<2x16xf32>
  %c = model.weight @c : tensor<16xf32>
  %db = train.scatter_gradient @b, %b {phase = #model.phase<backward>} : (tensor<64x32xf32>) -> tensor<1024xf32>
  train.accumulate @b, %db {phase = #model.phase<backward>} : tensor<1024xf32>
  %da = train.scatter_gradient @a, %a {phase = #model.phase<backward>} : (tensor<2x16xf32>) -> tensor<16xf32>
  train.accumulate @a, %da {phase = #model.phase<backward>} : tensor<16xf32>
  train.accumulate @c, %c {phase = #model.phase<backward>} : tensor<16xf32>
}
}
