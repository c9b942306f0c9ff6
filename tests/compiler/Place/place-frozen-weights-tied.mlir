// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --place-frozen-weights="shards=2 offload-tables" | FileCheck %s
// RUN: qlora-opt %s --place-frozen-weights="shards=2 offload-base" | FileCheck %s

// One op reads only the rank's rows of a sharded table; another op reads rows
// of the complete table. The table stays in GPU memory, sharded, and is
// gathered for the second op.
// CHECK: model.parameter @table : tensor<128x128xf32> {file = "m.safetensors", piece = 32768 : i64}
// CHECK: %[[WHOLE:.*]] = model.gather_weight @table
// CHECK: model.embedding %{{.*}}, %[[WHOLE]]
// CHECK: model.embedding %{{.*}} {words = 128 : i64}
model.parameter @table : tensor<128x128xf32> {file = "m.safetensors", piece = 32768}
model.parameter @trained : tensor<32x128xf32> {init = "zero", trainable}
train.step accumulate batch 1 length 64 ["ids"] {
^bb0(%ids: tensor<1x64xi32>):
  %t = model.weight @table : tensor<128x128xf32>
  %p = model.weight_piece @table : tensor<64x128xf32>
  %trained = model.weight @trained : tensor<32x128xf32>
  %x = model.embedding %ids, %t : (tensor<1x64xi32>, tensor<128x128xf32>) -> tensor<1x64x128xf32>
  %y = model.embedding %ids, %p {words = 128 : i64} : (tensor<1x64xi32>, tensor<64x128xf32>) -> tensor<1x64x128xf32>
  %h = model.linear %x, %trained : (tensor<1x64x128xf32>, tensor<32x128xf32>) -> tensor<1x64x32xf32>
}
