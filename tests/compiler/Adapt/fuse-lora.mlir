// SPDX-License-Identifier: MIT

// Siblings' A's become one GEMM and a split; B's GEMM adds to the base result.

// RUN: qlora-opt %s --split-input-file --fuse-lora | FileCheck %s

model.parameter @wq : tensor<16x8xf32> {file = "a"}
model.parameter @wk : tensor<12x8xf32> {file = "a"}
// LoRA ranks 4 and 2 give 6 rows; each part keeps its name.
// CHECK: model.parameter @aq.group : tensor<6x8xf32> {init = "kaiming", part_names = ["aq", "ak"], part_rows = array<i64: 4, 2>, trainable}
// CHECK-NOT: @aq :
// CHECK-NOT: @ak :
model.parameter @aq : tensor<4x8xf32> {init = "kaiming", trainable}
model.parameter @bq : tensor<16x4xf32> {init = "zero", trainable}
model.parameter @ak : tensor<2x8xf32> {init = "kaiming", trainable}
model.parameter @bk : tensor<12x2xf32> {init = "zero", trainable}

// CHECK-LABEL: func.func @siblings(
// CHECK-SAME: %[[X:.*]]: tensor<1x3x8xf32>)
func.func @siblings(%x: tensor<1x3x8xf32>) -> (tensor<1x3x16xf32>, tensor<1x3x12xf32>) {
  // CHECK: %[[Q0:.*]] = model.linear %[[X]], %{{.*}} {module = "q"}
  // CHECK: %[[A:.*]] = model.weight @aq.group : tensor<6x8xf32>
  // CHECK: %[[XA:.*]] = model.linear %[[X]], %[[A]] {layer = 3 : i64} : (tensor<1x3x8xf32>, tensor<6x8xf32>) -> tensor<1x3x6xf32>
  // CHECK: %[[PARTS:.*]]:2 = model.split %[[XA]] {layer = 3 : i64} : (tensor<1x3x6xf32>) -> (tensor<1x3x4xf32>, tensor<1x3x2xf32>)
  // CHECK: %[[Q:.*]] = model.linear %[[PARTS]]#0, %{{.*}} init %[[Q0]] {scale = 2.000000e+00 : f64}
  // CHECK: %[[K0:.*]] = model.linear %[[X]], %{{.*}} {module = "k"}
  // CHECK: %[[K:.*]] = model.linear %[[PARTS]]#1, %{{.*}} init %[[K0]] {scale = 2.000000e+00 : f64}
  // CHECK-NOT: model.add
  // CHECK: return %[[Q]], %[[K]]
  %wq = model.weight @wq : tensor<16x8xf32>
  %q0 = model.linear %x, %wq {module = "q"} : (tensor<1x3x8xf32>, tensor<16x8xf32>) -> tensor<1x3x16xf32>
  %aq = model.weight @aq : tensor<4x8xf32>
  %qa = model.linear %x, %aq {layer = 3} : (tensor<1x3x8xf32>, tensor<4x8xf32>) -> tensor<1x3x4xf32>
  %bq = model.weight @bq : tensor<16x4xf32>
  %qb = model.linear %qa, %bq {scale = 2.0 : f64} : (tensor<1x3x4xf32>, tensor<16x4xf32>) -> tensor<1x3x16xf32>
  %q = model.add %q0, %qb : tensor<1x3x16xf32>
  %wk = model.weight @wk : tensor<12x8xf32>
  %k0 = model.linear %x, %wk {module = "k"} : (tensor<1x3x8xf32>, tensor<12x8xf32>) -> tensor<1x3x12xf32>
  %ak = model.weight @ak : tensor<2x8xf32>
  %ka = model.linear %x, %ak : (tensor<1x3x8xf32>, tensor<2x8xf32>) -> tensor<1x3x2xf32>
  %bk = model.weight @bk : tensor<12x2xf32>
  %kb = model.linear %ka, %bk {scale = 2.0 : f64} : (tensor<1x3x2xf32>, tensor<12x2xf32>) -> tensor<1x3x12xf32>
  %k = model.add %k0, %kb : tensor<1x3x12xf32>
  return %q, %k : tensor<1x3x16xf32>, tensor<1x3x12xf32>
}

// -----

model.parameter @w : tensor<8x8xf32> {file = "a"}
model.parameter @a : tensor<2x8xf32> {init = "kaiming", trainable}
model.parameter @b : tensor<8x2xf32> {init = "zero", trainable}

// A residual is read again, so the sum with it stays an add. A single A keeps
// its name.
// CHECK: model.parameter @a : tensor<2x8xf32> {init = "kaiming", trainable}
// CHECK-LABEL: func.func @residual(
// CHECK-SAME: %[[X:.*]]: tensor<1x3x8xf32>)
func.func @residual(%x: tensor<1x3x8xf32>) -> (tensor<1x3x8xf32>, tensor<1x3x8xf32>) {
  // CHECK: %[[Y0:.*]] = model.linear %[[X]]
  // CHECK: %[[Y:.*]] = model.linear %{{.*}}, %{{.*}} init %[[Y0]]
  // CHECK: %[[H:.*]] = model.add %[[X]], %[[Y]]
  // CHECK: model.add %[[H]], %[[X]]
  %w = model.weight @w : tensor<8x8xf32>
  %y0 = model.linear %x, %w {module = "o"} : (tensor<1x3x8xf32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
  %a = model.weight @a : tensor<2x8xf32>
  %xa = model.linear %x, %a : (tensor<1x3x8xf32>, tensor<2x8xf32>) -> tensor<1x3x2xf32>
  %b = model.weight @b : tensor<8x2xf32>
  %xab = model.linear %xa, %b : (tensor<1x3x2xf32>, tensor<8x2xf32>) -> tensor<1x3x8xf32>
  %y = model.add %y0, %xab : tensor<1x3x8xf32>
  %h = model.add %x, %y : tensor<1x3x8xf32>
  %z = model.add %h, %x : tensor<1x3x8xf32>
  return %z, %h : tensor<1x3x8xf32>, tensor<1x3x8xf32>
}

// -----

model.parameter @w : tensor<8x8xf32> {file = "a"}
model.parameter @b : tensor<8x8xf32> {init = "zero", trainable}

// The base is read twice: adding into it would change the other reader's value.
// CHECK-LABEL: func.func @base_read_twice
func.func @base_read_twice(%x: tensor<1x3x8xf32>) -> (tensor<1x3x8xf32>, tensor<1x3x8xf32>) {
  // CHECK: %[[Y0:.*]] = model.linear
  // CHECK: %[[Y1:.*]] = model.linear
  // CHECK: model.add %[[Y0]], %[[Y1]]
  %w = model.weight @w : tensor<8x8xf32>
  %y0 = model.linear %x, %w {module = "o"} : (tensor<1x3x8xf32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
  %b = model.weight @b : tensor<8x8xf32>
  %y1 = model.linear %x, %b : (tensor<1x3x8xf32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
  %y = model.add %y0, %y1 : tensor<1x3x8xf32>
  return %y, %y0 : tensor<1x3x8xf32>, tensor<1x3x8xf32>
}

// -----

model.parameter @a0 : tensor<2x8xf32> {init = "kaiming", trainable}
model.parameter @a1 : tensor<2x8xf32> {init = "kaiming", trainable}

// Copies of the function for two lengths are fused in the same way and share
// one parameter.
// CHECK: model.parameter @a0.group : tensor<4x8xf32>
// CHECK-NOT: model.parameter
// CHECK-LABEL: func.func @short
// CHECK: model.weight @a0.group
// CHECK: -> (tensor<1x3x2xf32>, tensor<1x3x2xf32>)
func.func @short(%x: tensor<1x3x8xf32>) -> (tensor<1x3x2xf32>, tensor<1x3x2xf32>) {
  %a0 = model.weight @a0 : tensor<2x8xf32>
  %0 = model.linear %x, %a0 : (tensor<1x3x8xf32>, tensor<2x8xf32>) -> tensor<1x3x2xf32>
  %a1 = model.weight @a1 : tensor<2x8xf32>
  %1 = model.linear %x, %a1 : (tensor<1x3x8xf32>, tensor<2x8xf32>) -> tensor<1x3x2xf32>
  return %0, %1 : tensor<1x3x2xf32>, tensor<1x3x2xf32>
}
// CHECK-LABEL: func.func @long
// CHECK: model.weight @a0.group
// CHECK: model.split %{{.*}} : (tensor<1x9x4xf32>) -> (tensor<1x9x2xf32>, tensor<1x9x2xf32>)
func.func @long(%x: tensor<1x9x8xf32>) -> (tensor<1x9x2xf32>, tensor<1x9x2xf32>) {
  %a0 = model.weight @a0 : tensor<2x8xf32>
  %0 = model.linear %x, %a0 : (tensor<1x9x8xf32>, tensor<2x8xf32>) -> tensor<1x9x2xf32>
  %a1 = model.weight @a1 : tensor<2x8xf32>
  %1 = model.linear %x, %a1 : (tensor<1x9x8xf32>, tensor<2x8xf32>) -> tensor<1x9x2xf32>
  return %0, %1 : tensor<1x9x2xf32>, tensor<1x9x2xf32>
}
