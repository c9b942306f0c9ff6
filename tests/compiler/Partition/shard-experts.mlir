// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --shard-experts=ranks=2 | FileCheck %s
// RUN: qlora-opt %s --shard-experts=ranks=2 --build-train-step | FileCheck %s --check-prefix=STEP
// RUN: qlora-opt %s --shard-experts=ranks=1 | FileCheck %s --check-prefix=ONE
// RUN: not qlora-opt %s --shard-experts=ranks=0 2>&1 | FileCheck %s --check-prefix=ZERO
// RUN: not qlora-opt %s --shard-experts=ranks=3 2>&1 | FileCheck %s --check-prefix=THREE

// RUN: sed 's/128x64xf32/128x64x!model.quantized<nf4, 4096, false>/' %s > %t.mlir
// RUN: not qlora-opt %t.mlir --shard-experts=ranks=4 2>&1 | FileCheck %s --check-prefix=BLOCKS
// RUN: not qlora-opt %S/shard-context.mlir --shard-experts=ranks=2 2>&1 | FileCheck %s --check-prefix=NONE

// BLOCKS: error: --parallel ep=4: quantization blocks of expert weights cross ranks; remove ep, or use smaller blocks
// NONE: error: --parallel ep=2: the model has no experts; remove ep

// ONE-NOT: all_gather
// ZERO: error: expects at least one expert-parallel rank, but got 0
// THREE: error: 'model.sort_by_expert' op has 4 experts, not divisible by --parallel ep=3; use a number that divides them

// CHECK: module attributes {model.mesh = #model.mesh<ep = 2>, {{.*}}kept_whole = 1 : i64, ranks = 2 : i64, sliced_bytes = 16384 : i64, weights = 1 : i64, whole_bytes = 32768 : i64
// Frozen expert weights are sharded, except weights whose quantization blocks
// do not fit a shard. Trainable parameters are not sharded.
// CHECK: model.parameter @w1 : tensor<64x64xf32> {{.*}}slice = #model.slice<2, 0, [128]>
// CHECK: model.parameter @w2 : tensor<16x32x!model.quantized<nf4, 512, false>> {
// CHECK-NOT: slice
// CHECK: model.parameter @bias : tensor<4x32xf32>

// CHECK-LABEL: func.func @forward
// CHECK: %[[X:.*]] = model.embedding
// CHECK: %[[XS:.*]] = model.all_gather %[[X]] {{.*}}ranks = #model<ranks ep>} : (tensor<2x3x64xf32>) -> tensor<4x3x64xf32>
// Each rank computes the router for its own rows.
// CHECK: %[[WEIGHTS:.*]], %[[CHOICES:.*]] = model.route %{{.*}} -> (tensor<2x3x2xf32>, tensor<2x3x2xi32>)
// CHECK: %[[WS:.*]] = model.all_gather %[[WEIGHTS]] {{.*}}-> tensor<4x3x2xf32>
// CHECK: %[[CS:.*]] = model.all_gather %[[CHOICES]] {ranks = #model<ranks ep>} : (tensor<2x3x2xi32>) -> tensor<4x3x2xi32>
// CHECK: %[[ORDER:.*]], %[[PLACES:.*]], %[[EXPERTS:.*]], %[[OFFSETS:.*]], %[[OWN:.*]] = model.sort_by_expert %[[CS]] {layer = 5 : i64, ranks = 2 : i64} : (tensor<4x3x2xi32>) -> (tensor<4x3x2xi32>, tensor<4x3x2xi32>, tensor<4x3x2xi32>, tensor<5xi32>, tensor<3xi32>)
// CHECK: %[[ROWS:.*]] = model.gather_rows %[[XS]], %[[ORDER]], %[[PLACES]] {{.*}} -> tensor<4x3x2x64xf32>
// CHECK: %[[W1:.*]] = model.weight @w1 {{.*}}tensor<64x64xf32>
// CHECK: %[[H:.*]] = model.grouped_linear %[[ROWS]], %[[W1]], %[[OWN]] {{.*}}shared = 2 : i64{{.*}} -> tensor<4x3x2x32xf32>
// A trainable table of expert biases is unsharded: it has rows for all experts.
// CHECK: %[[B:.*]] = model.embedding %[[EXPERTS]], {{.*}} -> tensor<4x3x2x32xf32>
// CHECK: %[[HB:.*]] = model.add %[[H]], %[[B]] {{.*}}tensor<4x3x2x32xf32>
// CHECK: %[[O:.*]] = model.grouped_linear %[[HB]], %{{.*}}, %[[OFFSETS]] {shared = 2 : i64} {{.*}} -> tensor<4x3x2x4xf32>
// CHECK: %[[S:.*]] = model.combine_rows %[[O]], %[[ORDER]], %[[PLACES]] weights %[[WS]] {{.*}} -> tensor<4x3x4xf32>
// CHECK: %[[Y:.*]] = model.reduce_scatter %[[S]] {{.*}}ranks = #model<ranks ep>} : (tensor<4x3x4xf32>) -> tensor<2x3x4xf32>
// CHECK: model.head_loss %[[Y]]

// In the backward, each gather becomes a reduction and vice versa, both for the
// received rows and for the weights of the choices.
// STEP: train.step
// STEP: model.all_gather {{.*}}phase = #model.phase<backward>{{.*}} -> tensor<4x3x4xf32>
// STEP-DAG: model.reduce_scatter {{.*}}phase = #model.phase<backward>{{.*}} : (tensor<4x3x2xf32>) -> tensor<2x3x2xf32>
// STEP-DAG: model.reduce_scatter {{.*}}phase = #model.phase<backward>{{.*}} : (tensor<4x3x64xf32>) -> tensor<2x3x64xf32>
model.parameter @embed : tensor<8x64xf32> {init = "kaiming", trainable}
model.parameter @router : tensor<4x64xf32> {file = "router"}
model.parameter @w1 : tensor<128x64xf32> {file = "w1"}
model.parameter @w2 : tensor<16x32x!model.quantized<nf4, 512, false>> {file = "w2"}
model.parameter @bias : tensor<4x32xf32> {init = "zero", trainable}
model.parameter @head : tensor<8x4xf32> {file = "head"}
func.func @forward(%ids : tensor<2x3xi32> {model.input = "ids"},
                   %targets : tensor<2x3xi32> {model.input = "targets"})
    -> (tensor<1xf32>, tensor<1xf32>, tensor<2x3xi32>)
    attributes {model.batch = 2 : i64, model.length = 3 : i64} {
  %e = model.weight @embed : tensor<8x64xf32>
  %x = model.embedding %ids, %e : (tensor<2x3xi32>, tensor<8x64xf32>) -> tensor<2x3x64xf32>
  %r = model.weight @router : tensor<4x64xf32>
  %logits = model.linear %x, %r : (tensor<2x3x64xf32>, tensor<4x64xf32>) -> tensor<2x3x4xf32>
  %weights, %choices = model.route %logits : (tensor<2x3x4xf32>) -> (tensor<2x3x2xf32>, tensor<2x3x2xi32>)
  %order, %places, %experts, %offsets = model.sort_by_expert %choices {layer = 5 : i64} : (tensor<2x3x2xi32>) -> (tensor<2x3x2xi32>, tensor<2x3x2xi32>, tensor<2x3x2xi32>, tensor<5xi32>)
  %rows = model.gather_rows %x, %order, %places : (tensor<2x3x64xf32>, tensor<2x3x2xi32>, tensor<2x3x2xi32>) -> tensor<2x3x2x64xf32>
  %w1 = model.weight @w1 : tensor<128x64xf32>
  %h = model.grouped_linear %rows, %w1, %offsets : (tensor<2x3x2x64xf32>, tensor<128x64xf32>, tensor<5xi32>) -> tensor<2x3x2x32xf32>
  %b = model.weight @bias : tensor<4x32xf32>
  %bs = model.embedding %experts, %b : (tensor<2x3x2xi32>, tensor<4x32xf32>) -> tensor<2x3x2x32xf32>
  %hb = model.add %h, %bs : tensor<2x3x2x32xf32>
  %w2 = model.weight @w2 : tensor<16x32x!model.quantized<nf4, 512, false>>
  %o = model.grouped_linear %hb, %w2, %offsets : (tensor<2x3x2x32xf32>, tensor<16x32x!model.quantized<nf4, 512, false>>, tensor<5xi32>) -> tensor<2x3x2x4xf32>
  %y = model.combine_rows %o, %order, %places weights %weights : (tensor<2x3x2x4xf32>, tensor<2x3x2xi32>, tensor<2x3x2xi32>, tensor<2x3x2xf32>) -> tensor<2x3x4xf32>
  %wh = model.weight @head : tensor<8x4xf32>
  %loss, %count, %correct = model.head_loss %y, %wh, %targets : (tensor<2x3x4xf32>, tensor<8x4xf32>, tensor<2x3xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x3xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<2x3xi32>
}
