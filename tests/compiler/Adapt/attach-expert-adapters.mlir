// SPDX-License-Identifier: MIT

// PEFT's target_parameters. The A matrices of all experts are stacked, and the
// columns of their B matrices are interleaved. If several parameters of a
// module are adapted, each adapter wraps the previous ones, and so adds
// `base_layer` to their names.

// RUN: qlora-opt %s --attach-expert-adapters='r=4 alpha=8 targets=["e.up","e.down"] module-targets=["q"]' | FileCheck %s
// RUN: qlora-opt %s --attach-expert-adapters='r=4 alpha=8 rslora=true targets=["down"] module-targets=["q"]' | FileCheck %s --check-prefix=ONE
// RUN: qlora-opt %s --attach-expert-adapters='module-targets=["q"]' | FileCheck %s --check-prefix=OFF
// RUN: not qlora-opt %s --attach-expert-adapters='targets=["gate"] module-targets=["q"]' 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not qlora-opt %s --attach-expert-adapters='targets=["e.up"]' 2>&1 | FileCheck %s --check-prefix=LINEAR
// RUN: sed 's/, part_names.*}/}/' %s | qlora-opt --attach-expert-adapters='targets=["e.up"]' | FileCheck %s --check-prefix=STACKED
// RUN: not qlora-opt %s --attach-expert-adapters='targets=["e.up"] dropout=0.1 module-targets=["q"]' 2>&1 | FileCheck %s --check-prefix=DROP
// RUN: not qlora-opt %s --attach-expert-adapters='targets=["e.up"] init-a=gaussian module-targets=["q"]' 2>&1 | FileCheck %s --check-prefix=INIT
// RUN: not qlora-opt %s --attach-expert-adapters='targets="e.up" module-targets=["q"]' 2>&1 | FileCheck %s --check-prefix=LIST
// RUN: qlora-opt %s --quantize-base | FileCheck %s --check-prefix=KEPT
// RUN: qlora-opt %s --quantize-base=experts=true | FileCheck %s --check-prefix=PACKED

// NONE: target_parameters: ["gate"] matches no parameter of experts; there are: l.0.e.up, l.0.e.down
// LINEAR: lora_target_modules: "all-linear" matches the experts 'l.0.e'; list other modules
// all-linear does not include experts that are one tensor in the files.
// STACKED: model.weight @base_model.model.l.0.e.lora_A.weight
// DROP: lora_dropout: target_parameters supports only 0, but got 1.000000e-01
// INIT: init_lora_weights: target_parameters supports only true and false, but got gaussian
// LIST: target_parameters: expects a list of names, but got e.up
// OFF-NOT: lora

// KEPT: model.parameter @l.0.e.up : tensor<24x8xbf16>
// PACKED: model.parameter @l.0.e.up : tensor<24x8x!model.quantized<nf4, 64, true>> {file = "a", file_type = bf16, part_names = ["u0", "u1"], part_rows = array<i64: 12, 12>, quantized = !model.quantized<nf4, 64, true>}
model.parameter @l.0.e.up : tensor<24x8xbf16> {file = "a", part_names = ["u0", "u1"], part_rows = array<i64: 12, 12>}
model.parameter @l.0.e.down : tensor<32x6xbf16> {file = "a"}

func.func @forward(%x: tensor<?x?x2x8xf32>, %offsets: tensor<5xi32>) -> tensor<?x?x2x8xf32> {
  %u = model.weight @l.0.e.up : tensor<24x8xbf16>
  %d = model.weight @l.0.e.down : tensor<32x6xbf16>
  // CHECK: %[[Y0:.*]] = model.grouped_linear %[[X:.*]], %{{.*}}, %[[OFFSETS:.*]] {layer = 0 : i64, module = "l.0.e.up"}
  // CHECK: %[[A:.*]] = model.weight @base_model.model.l.0.e.base_layer.lora_A.weight : tensor<16x8xf32>
  // CHECK: %[[XA:.*]] = model.grouped_linear %[[X]], %[[A]], %[[OFFSETS]] {layer = 0 : i64} :
  // CHECK: %[[B:.*]] = model.weight @base_model.model.l.0.e.base_layer.lora_B.weight : tensor<6x16xf32>
  // CHECK: %[[YB:.*]] = model.grouped_linear %[[XA]], %[[B]], %[[OFFSETS]] {groups_last, layer = 0 : i64, scale = 2.000000e+00 : f64}
  // CHECK: %[[Y:.*]] = model.add %[[Y0]], %[[YB]] {layer = 0 : i64}
  // ONE: %[[Y:.*]] = model.grouped_linear
  %h = model.grouped_linear %x, %u, %offsets {layer = 0 : i64, module = "l.0.e.up"} : (tensor<?x?x2x8xf32>, tensor<24x8xbf16>, tensor<5xi32>) -> tensor<?x?x2x6xf32>
  // CHECK: model.grouped_linear %[[Y]], {{.*}}module = "l.0.e.down"
  // CHECK: model.weight @base_model.model.l.0.e.lora_A.weight : tensor<16x6xf32>
  // CHECK: model.weight @base_model.model.l.0.e.lora_B.weight : tensor<8x16xf32>
  // ONE-NOT: base_layer
  // ONE: model.grouped_linear %[[Y]],
  // ONE: model.weight @base_model.model.l.0.e.lora_A.weight
  // The scale is alpha / sqrt(r) = 8 / 2.
  // ONE: scale = 4.000000e+00 : f64
  %y = model.grouped_linear %h, %d, %offsets {layer = 0 : i64, module = "l.0.e.down"} : (tensor<?x?x2x6xf32>, tensor<32x6xbf16>, tensor<5xi32>) -> tensor<?x?x2x8xf32>
  return %y : tensor<?x?x2x8xf32>
}
