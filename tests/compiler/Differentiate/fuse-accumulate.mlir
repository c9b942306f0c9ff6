// SPDX-License-Identifier: MIT

// Sums of gradients move into the op that computes one of the terms.

// RUN: qlora-opt %s --fuse-accumulate | FileCheck %s

model.parameter @w : tensor<8x8xf32> {init = "zero", trainable}

// CHECK-LABEL: train.step accumulate
train.step accumulate batch 1 length 3 ["ids"] {
^bb0(%ids: tensor<1x3xi32>):
  %w = model.weight @w : tensor<8x8xf32>
  %x = model.embedding %ids, %w : (tensor<1x3xi32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>

  // Each term is read once: the second matmul adds to the first one's result.
  // CHECK: %[[G0:.*]] = model.linear %[[X:.*]], %{{.*}} layout in_out {phase = #model.phase<backward>}
  // CHECK: %[[G1:.*]] = model.linear %[[X]], %{{.*}} layout in_out init %[[G0]] {phase = #model.phase<backward>}
  // CHECK-NOT: model.add
  // CHECK: %[[H:.*]] = model.linear %[[G1]]
  %0 = model.linear %x, %w layout in_out {phase = #model.phase<backward>} : (tensor<1x3x8xf32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
  %1 = model.linear %x, %w layout in_out {phase = #model.phase<backward>} : (tensor<1x3x8xf32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
  %2 = model.add %0, %1 {phase = #model.phase<backward>} : tensor<1x3x8xf32>
  %3 = model.linear %2, %w layout in_out {phase = #model.phase<backward>} : (tensor<1x3x8xf32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>

  // A term that is read again must not be overwritten. Here it is read by both
  // adds, so neither add moves into a matmul.
  // CHECK: %[[T:.*]] = model.linear %[[X]]
  // CHECK: model.add %[[H]], %[[T]]
  // CHECK: model.add %{{.*}}, %[[H]]
  %4 = model.linear %x, %w layout in_out {phase = #model.phase<backward>} : (tensor<1x3x8xf32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
  %5 = model.add %3, %4 {phase = #model.phase<backward>} : tensor<1x3x8xf32>
  %6 = model.add %5, %3 {phase = #model.phase<backward>} : tensor<1x3x8xf32>

  // The matmul that computes the initial value may come after the matmul that
  // adds to it. The latter then moves down.
  // CHECK: %[[DY:.*]] = model.glu
  // CHECK: %[[V:.*]] = train.linear_weight_grad %{{.*}}, %{{.*}} {phase = #model.phase<backward>, scale = 1.000000e+00 : f64}
  // CHECK: %[[U:.*]] = train.linear_weight_grad %{{.*}}, %[[DY]] init %[[V]]
  // CHECK: train.accumulate @w, %[[U]]
  %dy = model.glu silu %6, %x {phase = #model.phase<backward>} : tensor<1x3x8xf32>
  %7 = train.linear_weight_grad %x, %dy {phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x3x8xf32>, tensor<1x3x8xf32>) -> tensor<8x8xf32>
  %8 = train.linear_weight_grad %dy, %x {phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x3x8xf32>, tensor<1x3x8xf32>) -> tensor<8x8xf32>
  %9 = model.add %8, %7 {phase = #model.phase<backward>} : tensor<8x8xf32>
  train.accumulate @w, %9 {phase = #model.phase<backward>} : tensor<8x8xf32>
}

// Sums in the forward are not fused, because the residual is saved.
// CHECK-LABEL: train.step evaluate
// CHECK: model.add
train.step evaluate batch 1 length 3 ["ids"] {
^bb0(%ids: tensor<1x3xi32>):
  %w = model.weight @w : tensor<8x8xf32>
  %x = model.embedding %ids, %w : (tensor<1x3xi32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
  %y = model.linear %x, %w : (tensor<1x3x8xf32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
  %z = model.linear %y, %w : (tensor<1x3x8xf32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
  %s = model.linear %x, %w : (tensor<1x3x8xf32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
  %h = model.add %z, %s : tensor<1x3x8xf32>
  %t = model.linear %h, %w : (tensor<1x3x8xf32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
}
