// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --unroll-micro-batches=chunks=3 | FileCheck %s
// RUN: qlora-opt %s --unroll-micro-batches="chunks=3 all-forwards-first" | FileCheck %s --check-prefix=GPIPE
// RUN: qlora-opt %s --unroll-micro-batches="chunks=2 lines=2" | FileCheck %s --check-prefix=PAIRS
// RUN: qlora-opt %s --unroll-micro-batches | FileCheck %s --check-prefix=ONE
// RUN: not qlora-opt %s --unroll-micro-batches=chunks=0 2>&1 | FileCheck %s --check-prefix=ZERO

// ONE: train.step accumulate batch 2 length 4
// ONE-NOT: chunks
// ZERO: error: expects chunks, lines and parts of at least 1, and with parts above 1 a multiple of the stages as chunks, but got chunks=0 lines=1 parts=1 for 3 stages

// This is the first of three stages. It sends all three chunks before it
// receives the first gradient, because two more stages process a chunk first.
// CHECK: train.step accumulate batch 6 length 4 ["ids", "targets"] attributes {chunks = 3 : i64{{.*}}in_flight = 3
// CHECK: (%[[IDS:.*]]: tensor<6x4xi32>, %{{.*}}: tensor<6x4xi32>):
// CHECK: model.weight @table
// CHECK-NOT: model.weight @table
// CHECK: %[[I:.*]]:3 = model.split %[[IDS]] {rows} : (tensor<6x4xi32>) -> (tensor<2x4xi32>, tensor<2x4xi32>, tensor<2x4xi32>)
// CHECK: %[[X0:.*]] = model.embedding %[[I]]#0
// CHECK: %[[S0:.*]]:3 = model.send %{{.*}} to 1
// CHECK: model.embedding %[[I]]#1
// CHECK: model.send %{{.*}} to 1
// CHECK: model.embedding %[[I]]#2
// CHECK: model.send %{{.*}} to 1
// CHECK: %[[D0:.*]] = model.receive from 1
// CHECK: train.linear_weight_grad %[[D0]], %[[X0]]
// CHECK: train.accumulate @a
// CHECK: %[[D1:.*]] = model.receive from 1
// CHECK: train.linear_weight_grad %[[D1]]
// CHECK: %[[D2:.*]] = model.receive from 1
// CHECK: train.linear_weight_grad %[[D2]]
// CHECK: train.accumulate @a
// Values that the runtime reads contain the rows of all chunks.
// CHECK: %[[ALL:.*]] = model.concat %[[S0]]#2, %{{.*}}, %{{.*}} {rows} : (tensor<2x4xi32>, tensor<2x4xi32>, tensor<2x4xi32>) -> tensor<6x4xi32>
// CHECK: train.result "correct", %[[ALL]]

// GPIPE: in_flight = 3
// GPIPE: model.embedding
// GPIPE: model.embedding
// GPIPE: model.embedding
// GPIPE: model.send {{.*}} to 1
// GPIPE: model.receive from 1

// The first and second sequences of pairs are two separate ranges of rows:
// chunk 0 has the first row of each.
// PAIRS: %[[I:.*]]:4 = model.split %{{.*}} {rows} : (tensor<4x4xi32>) -> (tensor<1x4xi32>, tensor<1x4xi32>, tensor<1x4xi32>, tensor<1x4xi32>)
// PAIRS: %[[IDS:.*]] = model.concat %[[I]]#0, %[[I]]#2 {rows}
// PAIRS: model.embedding %[[IDS]]

// An evaluation also sums over chunks.
// CHECK: train.step evaluate batch 6
// CHECK: %[[L0:.*]], %{{.*}}, %{{.*}} = model.head_loss
// CHECK: %[[L1:.*]], %{{.*}}, %{{.*}} = model.head_loss
// CHECK: %[[L2:.*]], %{{.*}}, %{{.*}} = model.head_loss
// CHECK: %[[SUM:.*]] = model.rows(%[[L0]], %[[L1]])
// CHECK: %[[TOTAL:.*]] = model.rows(%[[SUM]], %[[L2]])
// CHECK: train.result "loss_sum", %[[TOTAL]]

// Random numbers depend on the row's index in the micro-batch.
// CHECK: train.step accumulate batch 6 length 2
// CHECK: model.row_random {id = 7 : i64, run_rows = 4 : i64, runs = 3 : i64}
// CHECK: model.row_random {id = 7 : i64, run = 1 : i64, run_rows = 4 : i64, runs = 3 : i64}
// PAIRS: model.row_random {id = 7 : i64, run = 1 : i64, run_rows = 2 : i64, runs = 2 : i64}

module attributes {model.mesh = #model.mesh<pp = 3>, program.stage = 0 : i64} {
model.parameter @table : tensor<512x8xf32> {file = "m.safetensors"}
model.parameter @a : tensor<8x8xf32> {init = "kaiming", trainable}
train.step accumulate batch 2 length 4 ["ids", "targets"] {
^bb0(%ids: tensor<2x4xi32>, %targets: tensor<2x4xi32>):
  %table = model.weight @table : tensor<512x8xf32>
  %x = model.embedding %ids, %table : (tensor<2x4xi32>, tensor<512x8xf32>) -> tensor<2x4x8xf32>
  %a = model.weight @a : tensor<8x8xf32>
  %y = model.linear %x, %a {layer = 0 : i64} : (tensor<2x4x8xf32>, tensor<8x8xf32>) -> tensor<2x4x8xf32>
  %zeros:3 = model.send %y to 1 {names = ["loss_sum", "label_count", "correct"], wanted = array<i1: true>} : (tensor<2x4x8xf32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x4xi32>)
  %dy = model.receive from 1 {phase = #model.phase<backward>, wanted = array<i1: false>} : tensor<2x4x8xf32>
  train.result "loss_sum", %zeros#0 {accumulate, phase = #model.phase<backward>} : tensor<1xf32>
  train.result "correct", %zeros#2 {phase = #model.phase<backward>} : tensor<2x4xi32>
  %da = train.linear_weight_grad %dy, %x {phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<8x8xf32>
  train.accumulate @a, %da {phase = #model.phase<backward>} : tensor<8x8xf32>
}
train.step evaluate batch 2 length 4 ["ids", "targets"] {
^bb0(%ids: tensor<2x4xi32>, %targets: tensor<2x4xi32>):
  %table = model.weight @table : tensor<512x8xf32>
  %x = model.embedding %ids, %table : (tensor<2x4xi32>, tensor<512x8xf32>) -> tensor<2x4x8xf32>
  %loss, %count, %correct = model.head_loss %x, %table, %targets : (tensor<2x4x8xf32>, tensor<512x8xf32>, tensor<2x4xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x4xi32>)
  train.result "loss_sum", %loss : tensor<1xf32>
}
train.step accumulate batch 2 length 2 ["ids"] {
^bb0(%ids: tensor<2x2xi32>):
  %table = model.weight @table : tensor<512x8xf32>
  %x = model.embedding %ids, %table : (tensor<2x2xi32>, tensor<512x8xf32>) -> tensor<2x2x8xf32>
  %y = model.rows(%x) attributes {columns = 8, maps = [#model.map<full>]} : (tensor<2x2x8xf32>) -> tensor<2x2x8xf32> {
  ^bb0(%row: tensor<8xf32>):
    %r = model.row_random {id = 7 : i64} : tensor<8xf32>
    %s = arith.mulf %row, %r : tensor<8xf32>
    model.row_yield %s : tensor<8xf32>
  }
  %dy = model.receive from 1 {phase = #model.phase<backward>, wanted = array<i1: false>} : tensor<2x2x8xf32>
  %da = train.linear_weight_grad %dy, %y {phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<2x2x8xf32>, tensor<2x2x8xf32>) -> tensor<8x8xf32>
  train.accumulate @a, %da {phase = #model.phase<backward>} : tensor<8x8xf32>
}
}
