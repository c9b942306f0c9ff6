// SPDX-License-Identifier: MIT

// The auxiliary loss of two routers, of four experts each, and the operands of
// its gradient.
// RUN: qlora-opt %s | qlora-opt | FileCheck %s

// CHECK-LABEL: func.func @router_loss
func.func @router_loss(%l: tensor<2x3x8xf32>, %c: tensor<2x3x4xi32>, %s: tensor<2x3xi32>) -> tensor<1xf32> {
  // CHECK: model.router_probs %{{.*}}, %{{.*}} {experts = 4 : i64} :
  %p = model.router_probs %l, %s {experts = 4 : i64} : (tensor<2x3x8xf32>, tensor<2x3xi32>) -> tensor<2x3x8xf32>
  // CHECK: model.column_sum %{{.*}} : (tensor<2x3x8xf32>) -> tensor<4xf32>
  %sums = model.column_sum %p : (tensor<2x3x8xf32>) -> tensor<4xf32>
  // CHECK: model.mark_tokens %{{.*}} : (tensor<2x3xi32>) -> tensor<2x3x4xf32>
  %m = model.mark_tokens %s : (tensor<2x3xi32>) -> tensor<2x3x4xf32>
  // CHECK: model.count_choices %{{.*}}, %{{.*}} :
  %counts = model.count_choices %c, %m : (tensor<2x3x4xi32>, tensor<2x3x4xf32>) -> tensor<4xf32>
  // CHECK: model.router_loss %{{.*}}, %{{.*}} {chosen = 2 : i64, coefficient = 1.000000e-01 : f64} :
  %slopes, %loss = model.router_loss %sums, %counts {coefficient = 0.1 : f64, chosen = 2 : i64} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<1xf32>)
  return %loss : tensor<1xf32>
}
