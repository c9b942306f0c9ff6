// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --shard-sequence --split-input-file --verify-diagnostics | FileCheck %s
// RUN: qlora-opt %s --shard-sequence --split-input-file --verify-diagnostics --build-train-step | FileCheck %s --check-prefix=STEP

// All ranks have the residual. An all-to-all gives each rank its own tokens
// from every rank; the rank uses the first copy.
// CHECK: module attributes {model.mesh = #model.mesh<tp = 2>, {{.*}}gathers = 1 {{.*}}scattered = 1
// CHECK-LABEL: func.func @block
// CHECK: %[[H:.*]] = model.embedding {{.*}} -> tensor<3x4x16xf32>
// CHECK: %[[P:.*]] = model.linear %[[H]]
// CHECK-NEXT: %[[Y:.*]] = model.reduce_scatter %[[P]] {layer = 1 : i64, ranks = #model<ranks tp>} : (tensor<3x4x16xf32>) -> tensor<1x6x16xf32>
// CHECK-NEXT: %[[ALL:.*]] = model.all_to_all %[[H]] {layer = 1 : i64, ranks = #model<ranks tp>} : (tensor<3x4x16xf32>) -> tensor<2x96xf32>
// CHECK-NEXT: %[[ROWS:.*]]:2 = model.split %[[ALL]] {layer = 1 : i64, rows} : (tensor<2x96xf32>) -> (tensor<1x96xf32>, tensor<1x96xf32>)
// CHECK-NEXT: %[[OWN:.*]] = model.swap_blocks %[[ROWS]]#0 {first = 1 : i64, layer = 1 : i64, second = 1 : i64} : (tensor<1x96xf32>) -> tensor<1x6x16xf32>
// CHECK-NEXT: %[[Z:.*]] = model.add %[[OWN]], %[[Y]] {layer = 1 : i64} : tensor<1x6x16xf32>
// CHECK-NEXT: %[[N:.*]] = model.rms_norm %[[Z]], {{.*}} -> tensor<1x6x16xf32>
// Dropout masks are numbered by the unsharded tokens.
// CHECK-NEXT: %[[X:.*]] = model.all_gather %[[N]] {layer = 2 : i64, ranks = #model<ranks tp>} : (tensor<1x6x16xf32>) -> tensor<3x4x16xf32>
// CHECK-NEXT: %[[D:.*]] = model.dropout %[[X]]
// CHECK-NEXT: model.linear %[[D]]
// CHECK-NEXT: model.linear %[[X]]

// STEP: model.reduce_scatter {{.*}}phase = #model.phase<backward>{{.*}} : (tensor<3x4x16xf32>) -> tensor<1x6x16xf32>
// STEP: model.all_gather {{.*}}phase = #model.phase<backward>
module attributes {model.mesh = #model.mesh<tp = 2>} {
  model.parameter @table : tensor<32x16xf32> {file = "m.safetensors"}
  model.parameter @a : tensor<16x16xf32> {init = "kaiming", trainable}
  model.parameter @norm : tensor<16xf32> {file = "m.safetensors"}
  model.parameter @head : tensor<32x16xf32> {file = "m.safetensors"}
  func.func @block(%ids: tensor<3x4xi32> {model.input = "ids"}, %targets: tensor<3x4xi32> {model.input = "targets"}) -> (tensor<1xf32>, tensor<1xf32>)
      attributes {model.batch = 3 : i64, model.length = 4 : i64} {
    %table = model.weight @table : tensor<32x16xf32>
    %a = model.weight @a : tensor<16x16xf32>
    %norm = model.weight @norm : tensor<16xf32>
    %head = model.weight @head : tensor<32x16xf32>
    %h = model.embedding %ids, %table : (tensor<3x4xi32>, tensor<32x16xf32>) -> tensor<3x4x16xf32>
    %p = model.linear %h, %a {layer = 1 : i64} : (tensor<3x4x16xf32>, tensor<16x16xf32>) -> tensor<3x4x16xf32>
    %y = model.all_sum %p {layer = 1 : i64} : tensor<3x4x16xf32>
    %z = model.add %h, %y {layer = 1 : i64} : tensor<3x4x16xf32>
    %n = model.rms_norm %z, %norm {epsilon = 1.0e-5 : f64, layer = 2 : i64} : (tensor<3x4x16xf32>, tensor<16xf32>) -> tensor<3x4x16xf32>
    %d = model.dropout %n {probability = 0.1 : f64, id = 1 : i64, layer = 2 : i64} : tensor<3x4x16xf32>
    %u = model.linear %d, %a {layer = 2 : i64} : (tensor<3x4x16xf32>, tensor<16x16xf32>) -> tensor<3x4x16xf32>
    %v = model.linear %n, %a {layer = 2 : i64} : (tensor<3x4x16xf32>, tensor<16x16xf32>) -> tensor<3x4x16xf32>
    %s = model.add %u, %v : tensor<3x4x16xf32>
    %loss, %count, %best = model.head_loss %s, %head, %targets : (tensor<3x4x16xf32>, tensor<32x16xf32>, tensor<3x4xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<3x4xi32>)
    return %loss, %count : tensor<1xf32>, tensor<1xf32>
  }
}

// -----

// A reduction without a tokenwise reader stays an all-reduce.
// CHECK-LABEL: func.func @whole
// CHECK: model.all_sum
module attributes {model.mesh = #model.mesh<tp = 2>} {
  model.parameter @a : tensor<32x16xf32> {file = "m.safetensors", trainable}
  func.func @whole(%ids: tensor<1x4xi32> {model.input = "ids"}, %targets: tensor<1x4xi32> {model.input = "targets"}) -> (tensor<1xf32>, tensor<1xf32>)
      attributes {model.batch = 1 : i64, model.length = 4 : i64} {
    %a = model.weight @a : tensor<32x16xf32>
    %x = model.embedding %ids, %a : (tensor<1x4xi32>, tensor<32x16xf32>) -> tensor<1x4x16xf32>
    %y = model.all_sum %x : tensor<1x4x16xf32>
    %loss, %count, %best = model.head_loss %y, %a, %targets : (tensor<1x4x16xf32>, tensor<32x16xf32>, tensor<1x4xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x4xi32>)
    return %loss, %count : tensor<1xf32>, tensor<1xf32>
  }
}

// -----

module attributes {model.mesh = #model.mesh<tp = 2>} {
  // expected-error @+1 {{--sequence-parallel: a micro-batch has 1 x 5 tokens, not divisible by 2 ranks; change --per-device-train-batch-size or --max-length, or remove the option}}
  func.func @odd(%ids: tensor<1x5xi32> {model.input = "ids"}) -> tensor<1x5xi32>
      attributes {model.batch = 1 : i64, model.length = 5 : i64} {
    return %ids : tensor<1x5xi32>
  }
}
