// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --partition-pipeline="stages=2 stage=0 parts=2" | FileCheck %s --check-prefix=FIRST
// RUN: qlora-opt %s --partition-pipeline="stages=2 stage=1 parts=2" | FileCheck %s --check-prefix=SECOND
// RUN: qlora-opt %s --partition-pipeline="stages=2 stage=0 parts=2" --build-train-step | FileCheck %s --check-prefix=STEP0
// RUN: qlora-opt %s --partition-pipeline="stages=2 stage=1 parts=2" --build-train-step | FileCheck %s --check-prefix=STEP1
// RUN: qlora-opt %s --partition-pipeline="stages=2 stage=1 parts=2" --build-train-step --unroll-micro-batches="chunks=2 parts=2" | FileCheck %s --check-prefix=TURNS
// RUN: not qlora-opt %s --partition-pipeline="stages=2 stage=0 parts=3" 2>&1 | FileCheck %s --check-prefix=MANY
// RUN: not qlora-opt %s --partition-pipeline="stages=2 stage=0 parts=0" 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not qlora-opt %s --partition-pipeline="stages=2 stage=0 parts=2" --build-train-step --unroll-micro-batches="chunks=3 parts=2" 2>&1 | FileCheck %s --check-prefix=ODD

// MANY: error: a pipeline of 6 stages needs as many layers, but the model has 4; use a smaller pp in --parallel, or fewer virtual stages
// NONE: error: expects a stage index below the number of stages, and at least one virtual stage, but got stage 0 of 2 with 0 virtual stages each
// ODD: error: expects chunks, lines and parts of at least 1, and with parts above 1 a multiple of the stages as chunks, but got chunks=3 lines=1 parts=2 for 2 stages

// The first stage has layers 0 and 2. The embedding, which layer 3 reads again,
// is sent around the ring. So this stage also receives its own embedding:
// receives do not check for local values.
// FIRST: model.parameter @w0
// FIRST-NOT: @w1
// FIRST: model.parameter @w2
// FIRST: %[[X:.*]] = model.embedding
// FIRST: model.linear %[[X]], %{{.*}} {layer = 0 : i64}
// FIRST: %[[Y:.*]] = model.linear %{{.*}} {layer = 0 : i64}
// FIRST: model.send %[[X]], %[[Y]] to 1
// FIRST: %[[R:.*]]:2 = model.receive from -1
// FIRST: %[[Z:.*]] = model.linear %[[R]]#1, %{{.*}} {layer = 2 : i64}
// FIRST: %[[S:.*]]:3 = model.send %[[R]]#0, %[[Z]] to 1 {names = ["loss_sum", "label_count", "correct"]
// FIRST: return %[[S]]#0, %[[S]]#1, %[[S]]#2

// SECOND: %[[R:.*]]:2 = model.receive from -1
// SECOND: %[[Y:.*]] = model.linear %[[R]]#1, %{{.*}} {layer = 1 : i64}
// SECOND: model.send %[[R]]#0, %[[Y]] to 1
// SECOND: %[[Q:.*]]:2 = model.receive from -1
// SECOND: model.add %[[Q]]#0, %[[Q]]#1 {layer = 3 : i64}
// SECOND: %[[L:.*]], %{{.*}}, %{{.*}} = model.head_loss
// SECOND-NOT: model.send
// SECOND: return %[[L]]

// Gradients of the later virtual stage come first. Nothing before layer 0 is
// trainable.
// STEP0: model.receive from -1
// STEP0: model.send {{.*}} to 1
// STEP0: %[[D:.*]] = model.receive from 1 {phase = #model.phase<backward>
// STEP0: %[[DZ:.*]] = model.linear %[[D]], {{.*}}layer = 2
// STEP0: model.send %[[DZ]] to -1 {phase = #model.phase<backward>
// STEP0: %[[E:.*]] = model.receive from 1 {phase = #model.phase<backward>
// STEP0: train.linear_weight_grad %[[E]]
// STEP0: train.accumulate @a
// STEP0-NOT: model.send {{.*}}backward
// STEP0: train.step evaluate
// STEP1: model.send {{.*}} to -1 {phase = #model.phase<backward>
// STEP1: model.receive from 1 {phase = #model.phase<backward>
// STEP1: model.send {{.*}} to -1 {phase = #model.phase<backward>

// Stage 1 has layers 1 and 3. It computes layer 1 of both chunks, then forward
// and backward of layer 3 for chunk 0. Then it computes layer 3 of chunk 1, and
// the backward of layer 1 for chunk 0 (PipelineOrder.h).
// TURNS: model.receive from -1
// TURNS: model.linear {{.*}}layer = 1
// TURNS: model.send {{.*}} to 1
// TURNS: model.receive from -1
// TURNS: model.linear {{.*}}layer = 1
// TURNS: model.send {{.*}} to 1
// TURNS: model.receive from -1
// TURNS: model.add {{.*}}layer = 3
// TURNS: model.receive from -1
// TURNS: model.send {{.*}} to -1 {phase = #model.phase<backward>
// TURNS: model.add {{.*}}layer = 3
// TURNS: model.receive from 1 {phase = #model.phase<backward>
// TURNS: model.linear {{.*}}layer = 1{{.*}}backward
// TURNS: model.send {{.*}} to -1 {phase = #model.phase<backward>

model.parameter @table : tensor<16x8xf32> {file = "m.safetensors"}
model.parameter @a : tensor<8x8xf32> {init = "kaiming", trainable}
model.parameter @w0 : tensor<8x8xf32> {file = "m.safetensors"}
model.parameter @w1 : tensor<8x8xf32> {file = "m.safetensors"}
model.parameter @w2 : tensor<8x8xf32> {file = "m.safetensors"}
model.parameter @head : tensor<16x8xf32> {file = "m.safetensors"}

func.func @f(%ids: tensor<2x4xi32> {model.input = "ids"},
             %targets: tensor<2x4xi32> {model.input = "targets"})
    -> (tensor<1xf32>, tensor<1xf32>, tensor<2x4xi32>)
    attributes {model.batch = 2 : i64, model.length = 4 : i64} {
  %table = model.weight @table : tensor<16x8xf32>
  %x = model.embedding %ids, %table : (tensor<2x4xi32>, tensor<16x8xf32>) -> tensor<2x4x8xf32>
  %w0 = model.weight @w0 : tensor<8x8xf32>
  %x0 = model.linear %x, %w0 {layer = 0 : i64} : (tensor<2x4x8xf32>, tensor<8x8xf32>) -> tensor<2x4x8xf32>
  %a = model.weight @a : tensor<8x8xf32>
  %y0 = model.linear %x0, %a {layer = 0 : i64} : (tensor<2x4x8xf32>, tensor<8x8xf32>) -> tensor<2x4x8xf32>
  %w1 = model.weight @w1 : tensor<8x8xf32>
  %x1 = model.linear %y0, %w1 {layer = 1 : i64} : (tensor<2x4x8xf32>, tensor<8x8xf32>) -> tensor<2x4x8xf32>
  %w2 = model.weight @w2 : tensor<8x8xf32>
  %x2 = model.linear %x1, %w2 {layer = 2 : i64} : (tensor<2x4x8xf32>, tensor<8x8xf32>) -> tensor<2x4x8xf32>
  %x3 = model.add %x, %x2 {layer = 3 : i64} : tensor<2x4x8xf32>
  %head = model.weight @head : tensor<16x8xf32>
  %loss, %count, %correct = model.head_loss %x3, %head, %targets : (tensor<2x4x8xf32>, tensor<16x8xf32>, tensor<2x4xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x4xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<2x4xi32>
}
