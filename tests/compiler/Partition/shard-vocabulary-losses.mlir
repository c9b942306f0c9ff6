// SPDX-License-Identifier: MIT

// Losses of tokens over shards of the vocabulary. Smoothing adds the sum of the
// logits to the states. With a cap it has no sharded form.

// RUN: qlora-opt %s --shard-vocabulary=shards=2 | FileCheck %s

// CHECK: model.head_part {{.*}} {cap = 0.000000e+00 : f64, label_smoothing = 1.000000e-01 : f64, shards = 2 : i64, words = 1001 : i64} : {{.*}} -> (tensor<4x8x5xf32>, tensor<4x8x64xf32>)
// CHECK: model.head_merge {{.*}} {cap = 0.000000e+00 : f64, label_smoothing = 1.000000e-01 : f64, {{.*}}} : (tensor<8x8x5xf32>,
// CHECK: model.head_part {{.*}} {cap = 3.000000e+00 : f64, shards = 2 : i64, words = 1001 : i64} : {{.*}} -> tensor<4x8x4xf32>
// CHECK: model.head_merge {{.*}} {cap = 3.000000e+00 : f64, own_probability, {{.*}}}
// CHECK: model.head_loss {{.*}} {cap = 3.000000e+00 : f64, label_smoothing = 1.000000e-01 : f64}

model.parameter @table : tensor<1001x64xf32> {init = "kaiming", trainable}
model.parameter @smooth : tensor<1001x64xbf16> {file = "m.safetensors"}
model.parameter @own : tensor<1001x64xbf16> {file = "m.safetensors"}
model.parameter @capped : tensor<1001x64xbf16> {file = "m.safetensors"}

train.step accumulate batch 2 length 8 ["ids", "targets"] {
^bb0(%ids: tensor<2x8xi32>, %targets: tensor<2x8xi32>):
  %t = model.weight @table : tensor<1001x64xf32>
  %x = model.embedding %ids, %t : (tensor<2x8xi32>, tensor<1001x64xf32>) -> tensor<2x8x64xbf16>
  %w = model.weight @smooth : tensor<1001x64xbf16>
  %loss, %count, %correct, %dx = train.head_loss_grad %x, %w, %targets {label_smoothing = 0.1 : f64} : (tensor<2x8x64xbf16>, tensor<1001x64xbf16>, tensor<2x8xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x8xi32>, tensor<2x8x64xbf16>)
}
train.step evaluate batch 2 length 8 ["ids", "targets"] {
^bb0(%ids: tensor<2x8xi32>, %targets: tensor<2x8xi32>):
  %t = model.weight @table : tensor<1001x64xf32>
  %x = model.embedding %ids, %t : (tensor<2x8xi32>, tensor<1001x64xf32>) -> tensor<2x8x64xbf16>
  %w = model.weight @own : tensor<1001x64xbf16>
  %loss, %count, %correct = model.head_loss %x, %w, %targets {own_probability, cap = 3.0 : f64} : (tensor<2x8x64xbf16>, tensor<1001x64xbf16>, tensor<2x8xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x8xi32>)
  %v = model.weight @capped : tensor<1001x64xbf16>
  %l2, %c2, %r2 = model.head_loss %x, %v, %targets {cap = 3.0 : f64, label_smoothing = 0.1 : f64} : (tensor<2x8x64xbf16>, tensor<1001x64xbf16>, tensor<2x8xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x8xi32>)
}
