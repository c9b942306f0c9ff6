// SPDX-License-Identifier: MIT

// Adapters that each token chooses: parameters, their products, and the input.

// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 alpha=4 targets=["q_proj","v_proj"]' --fuse-lora --specialize-shapes="generation=3,8" --build-generation="entries=16" --stack-adapters="adapters=5" | FileCheck %s
// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 alpha=4' --specialize-shapes="generation=3,8" --build-generation="entries=16" --stack-adapters | FileCheck %s --check-prefix=NONE

// CHECK-LABEL: func.func @forward_prefill_1x8(
// CHECK-SAME: %[[CHOSEN:[a-z0-9]+]]: tensor<1x8xi32> {model.input = "adapters"}) ->
// CHECK: %[[Q:.*]] = model.linear %[[X:[0-9]+]], %{{.*}} {module = "l.0.q_proj"}
// CHECK: %[[A:.*]] = model.weight @base_model.model.l.0.q_proj.lora_A.weight.group : tensor<8x5x64xf32>
// CHECK: %[[XA:.*]] = model.adapter_linear %[[X]], %[[A]], %[[CHOSEN]]
// CHECK: %[[XAS:.*]]:2 = model.split %[[XA]]
// CHECK: model.adapter_linear %[[XAS]]#0, %{{.*}}, %[[CHOSEN]] init %[[Q]] :
// CHECK-LABEL: func.func @forward_decode_3x1(
// CHECK-SAME: tensor<3x1xi32> {model.input = "adapters"}) ->
// CHECK: model.adapter_linear

// The A's of siblings stay one parameter; all start at zero.
// CHECK: model.parameter @base_model.model.l.0.q_proj.lora_A.weight.group : tensor<8x5x64xf32> {init = "zero", part_names = ["base_model.model.l.0.q_proj.lora_A.weight", "base_model.model.l.0.v_proj.lora_A.weight"], part_rows = array<i64: 4, 4>, trainable}
// CHECK: model.parameter @base_model.model.l.0.q_proj.lora_B.weight : tensor<64x5x4xf32> {init = "zero", trainable}
// CHECK: model.parameter @base_model.model.l.0.v_proj.lora_B.weight : tensor<32x5x4xf32> {init = "zero", trainable}

// NONE-NOT: adapter_linear
// NONE-NOT: "adapters"
