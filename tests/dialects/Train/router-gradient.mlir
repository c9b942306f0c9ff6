// SPDX-License-Identifier: MIT

// The routers' auxiliary loss computes its derivative together with its sums.
// Every row gets a fraction of that derivative; choices have no gradient.

// RUN: qlora-opt %s --build-train-step | FileCheck %s

// CHECK: train.step accumulate
// CHECK: %[[L:.*]] = model.linear
// CHECK: model.route %[[L]]
// CHECK: %[[SLOPES:.*]], %[[LOSS:.*]] = model.router_loss
// CHECK: train.head_loss_grad
// CHECK: train.result "router_loss", %[[LOSS]] {accumulate
// CHECK: %[[SHARE:.*]] = model.rows(%[[SLOPES]]) attributes {columns = 4 : i64, label = "column_sum_grad", maps = [#model.map<column>], phase = #model.phase<backward>} : (tensor<4xf32>) -> tensor<1x3x4xf32>
// CHECK: %[[D:.*]] = model.rows(%[[L]], %{{.*}}, %[[SHARE]]) attributes {columns = 4 : i64, label = "router_probs_grad", maps = [#model.map<full>, #model.map<scalar>, #model.map<full>]
// CHECK-NOT: route_grad
// CHECK: model.linear %[[D]], %{{.*}} layout in_out {phase = #model.phase<backward>}
// CHECK: train.accumulate @embed
// CHECK: train.step evaluate
// CHECK: train.result "router_loss", %{{.*}} : tensor<1xf32>
model.parameter @embed : tensor<16x8xf32> {file = "a", trainable}
model.parameter @head : tensor<16x8xf32> {file = "a"}
model.parameter @router : tensor<4x8xf32> {file = "a"}
func.func @routers(%ids: tensor<1x3xi32> {model.input = "ids"}, %segments: tensor<1x3xi32> {model.input = "segments"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>, tensor<1xf32>) attributes {model.batch = 1, model.length = 3} {
  %e = model.weight @embed : tensor<16x8xf32>
  %h = model.weight @head : tensor<16x8xf32>
  %r = model.weight @router : tensor<4x8xf32>
  %x = model.embedding %ids, %e : (tensor<1x3xi32>, tensor<16x8xf32>) -> tensor<1x3x8xf32>
  %l = model.linear %x, %r : (tensor<1x3x8xf32>, tensor<4x8xf32>) -> tensor<1x3x4xf32>
  %w, %c = model.route %l : (tensor<1x3x4xf32>) -> (tensor<1x3x2xf32>, tensor<1x3x2xi32>)
  %p = model.router_probs %l, %segments {experts = 4 : i64} : (tensor<1x3x4xf32>, tensor<1x3xi32>) -> tensor<1x3x4xf32>
  %sums = model.column_sum %p : (tensor<1x3x4xf32>) -> tensor<4xf32>
  %m = model.mark_tokens %segments : (tensor<1x3xi32>) -> tensor<1x3x2xf32>
  %counts = model.count_choices %c, %m : (tensor<1x3x2xi32>, tensor<1x3x2xf32>) -> tensor<4xf32>
  %slopes, %router = model.router_loss %sums, %counts {coefficient = 0.1 : f64, chosen = 2 : i64} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<1xf32>)
  %loss, %count, %correct = model.head_loss %x, %h, %ids : (tensor<1x3x8xf32>, tensor<16x8xf32>, tensor<1x3xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>)
  return %loss, %count, %correct, %router : tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>, tensor<1xf32>
}
