// SPDX-License-Identifier: MIT

// Ops of MoE experts, with both layouts of W, and with the matrices of groups
// stacked by rows or interleaved by columns.
// RUN: qlora-opt %s | qlora-opt | FileCheck %s

// CHECK-LABEL: func.func @experts
func.func @experts(%x: tensor<2x3x8xf32>, %r: tensor<4x8xf32>, %u: tensor<24x8xbf16>, %d: tensor<8x24xf32>) -> tensor<2x3x8xf32> {
  %l = model.linear %x, %r : (tensor<2x3x8xf32>, tensor<4x8xf32>) -> tensor<2x3x4xf32>
  // CHECK: model.route %{{.*}} {over_all} :
  %w, %c = model.route %l {over_all} : (tensor<2x3x4xf32>) -> (tensor<2x3x2xf32>, tensor<2x3x2xi32>)
  // CHECK: %[[ORDER:.*]], %[[PLACES:.*]], %{{.*}}, %[[OFFSETS:.*]] = model.sort_by_expert
  %order, %places, %experts, %offsets = model.sort_by_expert %c : (tensor<2x3x2xi32>) -> (tensor<2x3x2xi32>, tensor<2x3x2xi32>, tensor<2x3x2xi32>, tensor<5xi32>)
  // CHECK: model.gather_rows %{{.*}}, %[[ORDER]], %[[PLACES]] :
  %g = model.gather_rows %x, %order, %places : (tensor<2x3x8xf32>, tensor<2x3x2xi32>, tensor<2x3x2xi32>) -> tensor<2x3x2x8xf32>
  // Four matrices of 6x8.
  // CHECK: model.grouped_linear %{{.*}}, %{{.*}}, %[[OFFSETS]] {module = "e.u"} :
  %h = model.grouped_linear %g, %u, %offsets {module = "e.u"} : (tensor<2x3x2x8xf32>, tensor<24x8xbf16>, tensor<5xi32>) -> tensor<2x3x2x6xf32>
  // Four matrices of 8x6, with interleaved columns.
  // CHECK: model.grouped_linear %{{.*}} init %{{.*}} {groups_last, scale = 5.000000e-01 : f64} :
  %o = model.grouped_linear %h, %d, %offsets init %g {groups_last, scale = 0.5 : f64} : (tensor<2x3x2x6xf32>, tensor<8x24xf32>, tensor<5xi32>, tensor<2x3x2x8xf32>) -> tensor<2x3x2x8xf32>
  // CHECK: model.grouped_linear %{{.*}} layout in_out :
  %b = model.grouped_linear %h, %u, %offsets layout in_out : (tensor<2x3x2x6xf32>, tensor<24x8xbf16>, tensor<5xi32>) -> tensor<2x3x2x8xf32>
  // CHECK: model.transpose_rows %{{.*}} {inner = 2 : i64} :
  %t = model.transpose_rows %h {inner = 2 : i64} : (tensor<2x3x2x6xf32>) -> tensor<2x3x2x6xf32>
  // CHECK: model.glu silu %{{.*}}, %{{.*}} {limit = 7.000000e+00 : f64, offset = 1.000000e+00 : f64, slope = 1.702000e+00 : f64} :
  %s = model.glu silu %t, %t {limit = 7.0 : f64, slope = 1.702 : f64, offset = 1.0 : f64} : tensor<2x3x2x6xf32>
  // CHECK: model.combine_rows %{{.*}}, %[[ORDER]], %[[PLACES]] weights %{{.*}} :
  %y = model.combine_rows %o, %order, %places weights %w : (tensor<2x3x2x8xf32>, tensor<2x3x2xi32>, tensor<2x3x2xi32>, tensor<2x3x2xf32>) -> tensor<2x3x8xf32>
  return %y : tensor<2x3x8xf32>
}
