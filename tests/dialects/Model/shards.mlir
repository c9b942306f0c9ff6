// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s | qlora-opt | FileCheck %s

// CHECK: model.parameter @w : tensor<20x16xf32> {file = "m.safetensors", piece = 640 : i64}
model.parameter @w : tensor<20x16xf32> {file = "m.safetensors", piece = 640}

// CHECK-LABEL: func.func @parts
func.func @parts(%ids: tensor<1x4xi32>, %h: tensor<1x4x16xf32>, %t: tensor<1x4xi32>) {
  // CHECK: model.gather_weight @w : tensor<20x16xf32>
  %whole = model.gather_weight @w : tensor<20x16xf32>
  // CHECK: %[[P:.*]] = model.weight_piece @w : tensor<10x16xf32>
  %p = model.weight_piece @w : tensor<10x16xf32>
  // CHECK: model.all_gather %{{.*}} : (tensor<1x4xi32>) -> tensor<2x4xi32>
  %all = model.all_gather %ids : (tensor<1x4xi32>) -> tensor<2x4xi32>
  // CHECK: %[[B:.*]] = model.swap_blocks %{{.*}} {first = 4 : i64, second = 2 : i64} : (tensor<1x4x16xf32>) -> tensor<2x4x8xf32>
  %blocks = model.swap_blocks %h {first = 4, second = 2} : (tensor<1x4x16xf32>) -> tensor<2x4x8xf32>
  // CHECK: model.all_to_all %[[B]] {ranks = #model<ranks cp>} : (tensor<2x4x8xf32>) -> tensor<1x8x8xf32>
  %exchanged = model.all_to_all %blocks {ranks = #model<ranks cp>} : (tensor<2x4x8xf32>) -> tensor<1x8x8xf32>
  // CHECK: model.embedding %{{.*}}, %[[P]] {words = 20 : i64}
  %y = model.embedding %all, %p {words = 20} : (tensor<2x4xi32>, tensor<10x16xf32>) -> tensor<2x4x16xf32>
  // CHECK: model.reduce_scatter %{{.*}} : (tensor<2x4x16xf32>) -> tensor<1x4x16xf32>
  %x = model.reduce_scatter %y : (tensor<2x4x16xf32>) -> tensor<1x4x16xf32>
  %hs = model.all_gather %h : (tensor<1x4x16xf32>) -> tensor<2x4x16xf32>
  %ts = model.all_gather %t : (tensor<1x4xi32>) -> tensor<2x4xi32>
  // CHECK: model.head_part %{{.*}} {cap = 3.000000e+01 : f64, shards = 2 : i64, words = 20 : i64}
  %s, %g = model.head_part %hs, %p, %ts {words = 20, shards = 2, cap = 30.0} : (tensor<2x4x16xf32>, tensor<10x16xf32>, tensor<2x4xi32>) -> (tensor<2x4x4xf32>, tensor<2x4x16xf32>)
  %ss = model.all_gather %s : (tensor<2x4x4xf32>) -> tensor<4x4x4xf32>
  // CHECK: model.head_merge %{{.*}}piece = 10 : i64
  %loss, %count, %correct, %d = "model.head_merge"(%ss, %ts, %g, %p) {words = 20, piece = 10, shards = 2, cap = 30.0 : f64} : (tensor<4x4x4xf32>, tensor<2x4xi32>, tensor<2x4x16xf32>, tensor<10x16xf32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x4xi32>, tensor<2x4x16xf32>)
  return
}
