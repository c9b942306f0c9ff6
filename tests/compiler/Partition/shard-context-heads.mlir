// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --shard-context=ranks=4 --split-input-file | FileCheck %s

// Three heads with separate keys on four ranks: each rank has one, and the last
// rank repeats the third.
// CHECK-LABEL: func.func @own_keys
// CHECK: %[[K:.*]]:2 = model.split %{{.*}} : (tensor<1x4x192xf32>) -> (tensor<1x4x128xf32>, tensor<1x4x64xf32>)
// CHECK: model.concat %[[K]]#0, %[[K]]#1, %[[K]]#1
// CHECK: model.attention {{.*}}heads = 1 : i64, kv_heads = 1 : i64
// CHECK: %[[P:.*]]:2 = model.split %{{.*}} : (tensor<1x4x256xf32>) -> (tensor<1x4x192xf32>, tensor<1x4x64xf32>)
// CHECK-NEXT: return %[[P]]#0
func.func @own_keys(%x: tensor<1x16x192xf32> {model.input = "ids"}, %k: tensor<1x16x192xf32> {model.input = "positions"}, %segments: tensor<1x16xi32> {model.input = "segments"}) -> tensor<1x16x192xf32>
    attributes {model.batch = 1 : i64, model.length = 16 : i64} {
  %att, %lse = model.attention %x, %k, %k, %segments {heads = 3 : i64, kv_heads = 3 : i64, head_dim = 64 : i64, window = 0 : i64, scale = 1.0 : f64} : (tensor<1x16x192xf32>, tensor<1x16x192xf32>, tensor<1x16x192xf32>, tensor<1x16xi32>) -> (tensor<1x16x192xf32>, tensor<1x3x16xf32>)
  return %att : tensor<1x16x192xf32>
}

// -----

// With two groups of five heads, each rank has three heads. Some heads are
// padding, so the real heads' ranges are not adjacent.
// CHECK-LABEL: func.func @apart
// CHECK: model.attention {{.*}}heads = 3 : i64, kv_heads = 1 : i64
// CHECK: %[[P:.*]]:4 = model.split %{{.*}} : (tensor<1x4x768xf32>) -> (tensor<1x4x320xf32>, tensor<1x4x64xf32>, tensor<1x4x320xf32>, tensor<1x4x64xf32>)
// CHECK-NEXT: model.concat %[[P]]#0, %[[P]]#2 : {{.*}} -> tensor<1x4x640xf32>
func.func @apart(%x: tensor<1x16x640xf32> {model.input = "ids"}, %k: tensor<1x16x128xf32> {model.input = "positions"}, %segments: tensor<1x16xi32> {model.input = "segments"}) -> tensor<1x16x640xf32>
    attributes {model.batch = 1 : i64, model.length = 16 : i64} {
  %att, %lse = model.attention %x, %k, %k, %segments {heads = 10 : i64, kv_heads = 2 : i64, head_dim = 64 : i64, window = 0 : i64, scale = 1.0 : f64} : (tensor<1x16x640xf32>, tensor<1x16x128xf32>, tensor<1x16x128xf32>, tensor<1x16xi32>) -> (tensor<1x16x640xf32>, tensor<1x10x16xf32>)
  return %att : tensor<1x16x640xf32>
}
