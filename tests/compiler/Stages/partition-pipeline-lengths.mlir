// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --partition-pipeline="stages=2 stage=0" | FileCheck %s
// RUN: qlora-opt %s --partition-pipeline="stages=2 stage=0" | FileCheck %s --check-prefix=WEIGHTS

// All lengths use the partition of the longest one, in which attention
// dominates. For the short length alone the LM head would dominate, and the
// first stage would have two layers.
// CHECK-LABEL: func.func @short
// CHECK: model.attention {{.*}}layer = 0
// CHECK-NOT: layer = 1
// CHECK: model.send
// CHECK-LABEL: func.func @long
// CHECK: model.attention {{.*}}layer = 0
// CHECK-NOT: layer = 1
// CHECK: model.send
// WEIGHTS-NOT: @b

model.parameter @table : tensor<8192x64xf32> {file = "m.safetensors"}
model.parameter @b : tensor<64x64xf32> {file = "m.safetensors"}
model.parameter @c : tensor<64x64xf32> {file = "m.safetensors"}

func.func @short(%ids: tensor<1x4xi32> {model.input = "ids"},
                 %targets: tensor<1x4xi32> {model.input = "targets"},
                 %segments: tensor<1x4xi32> {model.input = "segments"})
    -> (tensor<1xf32>, tensor<1xf32>, tensor<1x4xi32>)
    attributes {model.batch = 1 : i64, model.length = 4 : i64} {
  %table = model.weight @table : tensor<8192x64xf32>
  %x = model.embedding %ids, %table : (tensor<1x4xi32>, tensor<8192x64xf32>) -> tensor<1x4x64xf32>
  %a, %lse = model.attention %x, %x, %x, %segments {head_dim = 64 : i64, heads = 1 : i64, kv_heads = 1 : i64, layer = 0 : i64, scale = 1.0 : f64, window = 0 : i64} : (tensor<1x4x64xf32>, tensor<1x4x64xf32>, tensor<1x4x64xf32>, tensor<1x4xi32>) -> (tensor<1x4x64xf32>, tensor<1x1x4xf32>)
  %b = model.weight @b : tensor<64x64xf32>
  %y = model.linear %a, %b {layer = 1 : i64} : (tensor<1x4x64xf32>, tensor<64x64xf32>) -> tensor<1x4x64xf32>
  %c = model.weight @c : tensor<64x64xf32>
  %z = model.linear %y, %c {layer = 2 : i64} : (tensor<1x4x64xf32>, tensor<64x64xf32>) -> tensor<1x4x64xf32>
  %loss, %count, %correct = model.head_loss %z, %table, %targets : (tensor<1x4x64xf32>, tensor<8192x64xf32>, tensor<1x4xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x4xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x4xi32>
}

func.func @long(%ids: tensor<1x131072xi32> {model.input = "ids"},
                %targets: tensor<1x131072xi32> {model.input = "targets"},
                %segments: tensor<1x131072xi32> {model.input = "segments"})
    -> (tensor<1xf32>, tensor<1xf32>, tensor<1x131072xi32>)
    attributes {model.batch = 1 : i64, model.length = 131072 : i64} {
  %table = model.weight @table : tensor<8192x64xf32>
  %x = model.embedding %ids, %table : (tensor<1x131072xi32>, tensor<8192x64xf32>) -> tensor<1x131072x64xf32>
  %a, %lse = model.attention %x, %x, %x, %segments {head_dim = 64 : i64, heads = 1 : i64, kv_heads = 1 : i64, layer = 0 : i64, scale = 1.0 : f64, window = 0 : i64} : (tensor<1x131072x64xf32>, tensor<1x131072x64xf32>, tensor<1x131072x64xf32>, tensor<1x131072xi32>) -> (tensor<1x131072x64xf32>, tensor<1x1x131072xf32>)
  %b = model.weight @b : tensor<64x64xf32>
  %y = model.linear %a, %b {layer = 1 : i64} : (tensor<1x131072x64xf32>, tensor<64x64xf32>) -> tensor<1x131072x64xf32>
  %c = model.weight @c : tensor<64x64xf32>
  %z = model.linear %y, %c {layer = 2 : i64} : (tensor<1x131072x64xf32>, tensor<64x64xf32>) -> tensor<1x131072x64xf32>
  %loss, %count, %correct = model.head_loss %z, %table, %targets : (tensor<1x131072x64xf32>, tensor<8192x64xf32>, tensor<1x131072xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x131072xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x131072xi32>
}
