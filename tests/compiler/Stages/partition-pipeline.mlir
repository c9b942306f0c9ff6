// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --partition-pipeline="stages=2 stage=0" | FileCheck %s --check-prefix=FIRST
// RUN: qlora-opt %s --partition-pipeline="stages=2 stage=1" | FileCheck %s --check-prefix=SECOND
// RUN: qlora-opt %s --partition-pipeline="stages=3 stage=1" | FileCheck %s --check-prefix=MIDDLE
// RUN: qlora-opt %s --partition-pipeline="stages=2 stage=0" --build-train-step | FileCheck %s --check-prefix=STEP0
// RUN: qlora-opt %s --partition-pipeline="stages=2 stage=1" --build-train-step | FileCheck %s --check-prefix=STEP1
// RUN: qlora-opt %s --partition-pipeline="stages=1 stage=0" | FileCheck %s --check-prefix=ONE
// RUN: not qlora-opt %s --partition-pipeline="stages=4 stage=0" 2>&1 | FileCheck %s --check-prefix=FOUR
// RUN: not qlora-opt %s --partition-pipeline="stages=2 stage=2" 2>&1 | FileCheck %s --check-prefix=THIRD

// ONE-NOT: model.send
// FOUR: error: a pipeline of 4 stages needs as many layers, but the model has 3; use a smaller pp in --parallel, or fewer virtual stages
// THIRD: error: expects a stage index below the number of stages, and at least one virtual stage, but got stage 2 of 2

// The LM head costs more than two layers, so the first stage has both layers.
// Every value that later layers read is sent, including values of earlier
// layers. No gradient flows into the embedding. Unused parameters are removed,
// except trainable ones.
// FIRST: module attributes {model.mesh = #model.mesh<pp = 2>, program.stage = 0 : i64
// FIRST: model.parameter @table
// FIRST: model.parameter @a : tensor<8x8xf32> {{{.*}}trainable}
// FIRST: model.parameter @c : tensor<8x8xf32> {elsewhere, {{.*}}trainable}
// FIRST-NOT: @head
// FIRST: func.func @f
// FIRST: %[[X:.*]] = model.embedding
// FIRST: %[[Y:.*]] = model.linear %[[X]], %{{.*}} {layer = 0 : i64}
// FIRST: %[[Z:.*]] = model.linear %[[Y]], %{{.*}} {layer = 1 : i64}
// FIRST: %[[S:.*]]:3 = model.send %[[X]], %[[Z]] to 1 {names = ["loss_sum", "label_count", "correct"], wanted = array<i1: false, true>}
// FIRST: return %[[S]]#0, %[[S]]#1, %[[S]]#2

// SECOND: module attributes {model.mesh = #model.mesh<pp = 2>, program.stage = 1 : i64
// SECOND-NOT: @table
// SECOND: model.parameter @a : tensor<8x8xf32> {elsewhere
// SECOND: %[[R:.*]]:2 = model.receive from -1 {wanted = array<i1: false, true>} : tensor<2x4x8xf32>, tensor<2x4x8xf32>
// SECOND-NOT: model.embedding
// SECOND-NOT: @b
// SECOND: %[[SUM:.*]] = model.add %[[R]]#0, %[[R]]#1 {layer = 2 : i64}
// SECOND: model.linear %[[SUM]], %{{.*}} {layer = 2 : i64}
// SECOND: model.head_loss
// SECOND-NOT: model.send

// The middle stage forwards the values of an earlier stage.
// MIDDLE: %[[R:.*]]:2 = model.receive from -1
// MIDDLE: %[[Z:.*]] = model.linear %[[R]]#1
// MIDDLE: model.send %[[R]]#0, %[[Z]] to 1 {{{.*}}wanted = array<i1: false, true>}

// Only gradients for trainable parameters are sent back.
// STEP0: model.send {{.*}} to 1 {names
// STEP0: %[[D:.*]] = model.receive from 1 {phase = #model.phase<backward>, wanted = array<i1: false>} : tensor<2x4x8xf32>
// STEP0: %[[DY:.*]] = model.linear %[[D]]
// STEP0: train.linear_weight_grad %[[DY]]
// STEP0: train.accumulate @a
// STEP0-NOT: train.accumulate @c
// STEP0: train.step evaluate
// STEP1: model.receive from -1
// STEP1: train.accumulate @c
// STEP1: model.send %{{.*}} to -1 {phase = #model.phase<backward>, wanted = array<i1: false>} : (tensor<2x4x8xf32>) -> ()

model.parameter @table : tensor<512x8xf32> {file = "m.safetensors"}
model.parameter @a : tensor<8x8xf32> {init = "kaiming", trainable}
model.parameter @b : tensor<8x8xf32> {file = "m.safetensors"}
model.parameter @c : tensor<8x8xf32> {init = "kaiming", trainable}
model.parameter @head : tensor<512x8xf32> {file = "m.safetensors"}

func.func @f(%ids: tensor<2x4xi32> {model.input = "ids"},
             %targets: tensor<2x4xi32> {model.input = "targets"})
    -> (tensor<1xf32>, tensor<1xf32>, tensor<2x4xi32>)
    attributes {model.batch = 2 : i64, model.length = 4 : i64} {
  %table = model.weight @table : tensor<512x8xf32>
  %x = model.embedding %ids, %table : (tensor<2x4xi32>, tensor<512x8xf32>) -> tensor<2x4x8xf32>
  %a = model.weight @a : tensor<8x8xf32>
  %y = model.linear %x, %a {layer = 0 : i64} : (tensor<2x4x8xf32>, tensor<8x8xf32>) -> tensor<2x4x8xf32>
  %b = model.weight @b : tensor<8x8xf32>
  %z = model.linear %y, %b {layer = 1 : i64} : (tensor<2x4x8xf32>, tensor<8x8xf32>) -> tensor<2x4x8xf32>
  %sum = model.add %x, %z {layer = 2 : i64} : tensor<2x4x8xf32>
  %c = model.weight @c : tensor<8x8xf32>
  %o = model.linear %sum, %c {layer = 2 : i64} : (tensor<2x4x8xf32>, tensor<8x8xf32>) -> tensor<2x4x8xf32>
  %head = model.weight @head : tensor<512x8xf32>
  %loss, %count, %correct = model.head_loss %o, %head, %targets : (tensor<2x4x8xf32>, tensor<512x8xf32>, tensor<2x4xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x4xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<2x4xi32>
}
