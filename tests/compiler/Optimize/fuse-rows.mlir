// SPDX-License-Identifier: MIT

// Chains of row ops become one region: what fuses, the position of the fused
// op, and what does not fuse.

// RUN: qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=32" --attach-adapters='r=4 targets=["q_proj","o_proj"]' --fuse-lora --build-train-step --fuse-accumulate --fuse-rows | FileCheck %s
// RUN: qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=32" --attach-adapters='r=4 targets=["q_proj","o_proj"]' --fuse-lora --build-train-step --fuse-accumulate --fuse-rows="fuse=false" | FileCheck %s --check-prefix=SINGLE --implicit-check-not=__
// RUN: qlora-opt %s --fuse-rows | FileCheck %s --check-prefix=SMALL

// The residual and the norm after it are one kernel with two results, as the
// residual is read again.
// CHECK: %{{.*}}:2 = model.rows(%{{.*}}, %{{.*}}, %{{.*}}) attributes {columns = 64 : i64, label = "add__rms_norm"
// CHECK: %[[H:.*]] = arith.addf
// CHECK: model.row_sum
// CHECK: model.row_yield %[[H]], %{{.*}}
// The gradient of the norm and the addition of the residual's gradient are one
// kernel.
// CHECK: label = "rms_norm_grad__add"

// SINGLE: label = "add"
// SINGLE: label = "rms_norm"

model.parameter @w : tensor<8x8xf32> {file = "a"}
model.parameter @n : tensor<4xf32> {file = "a"}

// The value between the two ops lives only in a register. x is read once,
// through one argument, and equal sums are computed once.
// SMALL-LABEL: train.step evaluate batch 1 length 3
// SMALL: %[[X:.*]] = model.embedding
// SMALL-NEXT: %[[Y:.*]] = model.rows(%[[X]]) attributes {columns = 8 : i64, label = "add__glu", maps = [#model.map<full>]}
// SMALL-NEXT: ^bb0(%[[x:.*]]: tensor<8xf32>):
// SMALL-NEXT: %[[h:.*]] = arith.addf %[[x]], %[[x]]
// SMALL-NEXT: %[[s:.*]] = model.row_sigmoid %[[h]]
// SMALL-NEXT: %[[t:.*]] = arith.mulf %[[h]], %[[s]]
// SMALL-NEXT: %[[y:.*]] = arith.mulf %[[t]], %[[x]]
// SMALL-NEXT: model.row_yield %[[y]]
// SMALL: model.linear %[[Y]]
train.step evaluate batch 1 length 3 ["ids"] {
^bb0(%ids: tensor<1x3xi32>):
  %w = model.weight @w : tensor<8x8xf32>
  %x = model.embedding %ids, %w : (tensor<1x3xi32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
  %h = model.add %x, %x : tensor<1x3x8xf32>
  %y = model.glu silu %h, %x : tensor<1x3x8xf32>
  %z = model.linear %y, %w : (tensor<1x3x8xf32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
}

// In 16 bits, a value read in the same kernel is rounded as memory would have
// rounded it. Recomputing %y from a stored %h therefore gives the same bits.
// SMALL-LABEL: train.step evaluate batch 1 length 2
// SMALL: label = "add__glu"
// SMALL: %[[h:.*]] = arith.addf
// SMALL-NEXT: %[[r:.*]] = model.row_round %[[h]] to bf16 : tensor<8xf32>
// SMALL-NEXT: model.row_sigmoid %[[r]]
train.step evaluate batch 1 length 2 ["ids"] {
^bb0(%ids: tensor<1x2xi32>):
  %w = model.weight @w : tensor<8x8xf32>
  %x = model.embedding %ids, %w : (tensor<1x2xi32>, tensor<8x8xf32>) -> tensor<1x2x8xbf16>
  %h = model.add %x, %x : tensor<1x2x8xbf16>
  %y = model.glu silu %h, %x : tensor<1x2x8xbf16>
  %z = model.linear %y, %w : (tensor<1x2x8xbf16>, tensor<8x8xf32>) -> tensor<1x2x8xbf16>
}

// Another op between the producer and the consumer reads the value. The fused
// op takes the producer's position if the consumer's operands are available
// there.
// SMALL-LABEL: train.step evaluate batch 1 length 4
// SMALL: %[[F:.*]]:2 = model.rows(%{{.*}}) {{.*}}label = "add__add"
// SMALL: model.linear %[[F]]#0
// SMALL: model.linear %[[F]]#1
train.step evaluate batch 1 length 4 ["ids"] {
^bb0(%ids: tensor<1x4xi32>):
  %w = model.weight @w : tensor<8x8xf32>
  %x = model.embedding %ids, %w : (tensor<1x4xi32>, tensor<8x8xf32>) -> tensor<1x4x8xf32>
  %h = model.add %x, %x : tensor<1x4x8xf32>
  %0 = model.linear %h, %w : (tensor<1x4x8xf32>, tensor<8x8xf32>) -> tensor<1x4x8xf32>
  %y = model.add %h, %x : tensor<1x4x8xf32>
  %1 = model.linear %y, %w : (tensor<1x4x8xf32>, tensor<8x8xf32>) -> tensor<1x4x8xf32>
}

// The consumer depends on an op that reads the producer's result, so no
// position for a fused op is valid.
// SMALL-LABEL: train.step evaluate batch 1 length 5
// SMALL: %[[H:.*]] = model.rows({{.*}}label = "add"
// SMALL: %[[L:.*]] = model.linear %[[H]]
// SMALL: model.rows(%[[H]], %[[L]]) {{.*}}label = "add"
train.step evaluate batch 1 length 5 ["ids"] {
^bb0(%ids: tensor<1x5xi32>):
  %w = model.weight @w : tensor<8x8xf32>
  %x = model.embedding %ids, %w : (tensor<1x5xi32>, tensor<8x8xf32>) -> tensor<1x5x8xf32>
  %h = model.add %x, %x : tensor<1x5x8xf32>
  %l = model.linear %h, %w : (tensor<1x5x8xf32>, tensor<8x8xf32>) -> tensor<1x5x8xf32>
  %y = model.add %h, %l : tensor<1x5x8xf32>
}

// Rows of 8 do not fuse with rows of 4.
// SMALL-LABEL: train.step evaluate batch 1 length 6
// SMALL: columns = 8 : i64, label = "add"
// SMALL: columns = 4 : i64, label = "rms_norm"
train.step evaluate batch 1 length 6 ["ids"] {
^bb0(%ids: tensor<1x6xi32>):
  %w = model.weight @w : tensor<8x8xf32>
  %n = model.weight @n : tensor<4xf32>
  %x = model.embedding %ids, %w : (tensor<1x6xi32>, tensor<8x8xf32>) -> tensor<1x6x8xf32>
  %h = model.add %x, %x : tensor<1x6x8xf32>
  %y = model.rms_norm %h, %n {epsilon = 1.0e-5 : f64} : (tensor<1x6x8xf32>, tensor<4xf32>) -> tensor<1x6x8xf32>
}

// Forward and backward do not fuse: rematerialize decides about values between
// them.
// SMALL-LABEL: train.step accumulate
// SMALL: label = "add", maps
// SMALL: label = "glu", maps = [#model.map<full>, #model.map<full>], phase = #model.phase<backward>
train.step accumulate batch 1 length 3 ["ids"] {
^bb0(%ids: tensor<1x3xi32>):
  %w = model.weight @w : tensor<8x8xf32>
  %x = model.embedding %ids, %w : (tensor<1x3xi32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
  %h = model.add %x, %x : tensor<1x3x8xf32>
  %y = model.glu silu %h, %x {phase = #model.phase<backward>} : tensor<1x3x8xf32>
}
