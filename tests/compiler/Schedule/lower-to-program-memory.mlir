// SPDX-License-Identifier: MIT

// The memory of values: no value that is read, stored or returned is lost, and
// no value that is read later is overwritten.

// RUN: split-file %s %t
// RUN: qlora-opt %t/twice.mlir --lower-to-program | FileCheck %s --check-prefix=TWICE
// RUN: qlora-opt %t/forward.mlir --lower-to-program | FileCheck %s --check-prefix=FORWARD
// RUN: qlora-opt %t/results.mlir --lower-to-program | FileCheck %s --check-prefix=RESULTS
// RUN: qlora-opt %t/overwrite.mlir --lower-to-program | FileCheck %s --check-prefix=OVERWRITE
// RUN: qlora-opt %t/stored.mlir --fuse-rows --lower-to-program | FileCheck %s --check-prefix=STORED
// RUN: qlora-opt %t/later.mlir --fuse-rows --lower-to-program | FileCheck %s --check-prefix=LATER
// RUN: qlora-opt %t/dense.mlir --fuse-rows --lower-to-program | FileCheck %s --check-prefix=DENSE

//--- twice.mlir
// Both operands of the concat are a: its producer writes the first range, a
// copy writes the second.
// TWICE: program.entry accumulate
// TWICE-DAG: %[[C:.*]] = program.buffer activation bytes 128
// TWICE-DAG: %[[FIRST:.*]] = program.view %[[C]] offset 0 bytes 112
// TWICE: program.launch @embedding(%{{.*}}, %{{.*}}, %[[FIRST]] {{[a-z_]+ [a-z0-9]+}})
// TWICE: %[[SECOND:.*]] = program.view %[[C]] offset 16 bytes 112
// TWICE: program.launch @copy_rows(%{{.*}} read {{[a-z0-9]+}}, %[[SECOND]] write {{[a-z0-9]+}}) constants [4, 4, 8, 8]
module attributes {train.layout = [], train.offsets = array<i64>} {
  model.parameter @w : tensor<8x4xf32> {file = "a"}
  train.step accumulate batch 1 length 4 ["ids"] {
  ^bb0(%ids: tensor<1x4xi32>):
    %w = model.weight @w : tensor<8x4xf32>
    %a = model.embedding %ids, %w {phase = #model.phase<backward>} : (tensor<1x4xi32>, tensor<8x4xf32>) -> tensor<1x4x4xf32>
    %c = model.concat %a, %a {phase = #model.phase<backward>} : (tensor<1x4x4xf32>, tensor<1x4x4xf32>) -> tensor<1x4x8xf32>
    %n = model.column_sum %c {phase = #model.phase<backward>} : (tensor<1x4x8xf32>) -> tensor<8xf32>
  }
}

//--- forward.mlir
// In the forward, a concat copies activations into one buffer, so that each can
// be freed separately. rematerialize counts them in this way
// (rematerialize-memory.mlir).
// FORWARD: program.entry evaluate
// FORWARD: program.launch @embedding(%{{.*}}, %{{.*}}, %[[A:[0-9]+]] {{[a-z_]+ [a-z0-9]+}}){{.*}} constants [4, 4, 8, 4, 0, 0]
// FORWARD: program.launch @embedding(%{{.*}}, %{{.*}}, %[[B:[0-9]+]] {{[a-z_]+ [a-z0-9]+}}){{.*}} constants [4, 4, 8, 4, 0, 0]
// FORWARD: program.launch @copy_rows(%[[A]] {{[a-z_]+ [a-z0-9]+}}, %{{.*}})
// FORWARD: program.launch @copy_rows(%[[B]] {{[a-z_]+ [a-z0-9]+}}, %{{.*}})
module attributes {train.layout = [], train.offsets = array<i64>} {
  model.parameter @w : tensor<8x4xf32> {file = "a"}
  train.step evaluate batch 1 length 4 ["ids"] {
  ^bb0(%ids: tensor<1x4xi32>):
    %w = model.weight @w : tensor<8x4xf32>
    %a = model.embedding %ids, %w : (tensor<1x4xi32>, tensor<8x4xf32>) -> tensor<1x4x4xf32>
    %b = model.embedding %ids, %w : (tensor<1x4xi32>, tensor<8x4xf32>) -> tensor<1x4x4xf32>
    %c = model.concat %a, %b : (tensor<1x4x4xf32>, tensor<1x4x4xf32>) -> tensor<1x4x8xf32>
    %n = model.column_sum %c : (tensor<1x4x8xf32>) -> tensor<8xf32>
  }
}

//--- results.mlir
// Results may be a range of a value, an argument, or one value under two names.
// RESULTS: program.entry evaluate
// RESULTS-DAG: %[[IDS:.*]] = program.buffer input offset 0 bytes 16
// RESULTS-DAG: %[[LOSS:.*]] = program.buffer result offset 0 bytes 4
// RESULTS-DAG: program.bind loss_sum %[[LOSS]]
// RESULTS-DAG: %[[COUNT:.*]] = program.buffer result offset 4 bytes 4
// RESULTS-DAG: program.bind label_count %[[COUNT]]
// RESULTS-DAG: %[[CORRECT:.*]] = program.buffer result offset 64 bytes 16
// RESULTS-DAG: program.bind correct %[[CORRECT]]
// RESULTS: program.launch @column_sum(%{{.*}}, %[[SUMS:[0-9]+]] {{[a-z_]+ [a-z0-9]+}})
// RESULTS: %[[PART:.*]] = program.view %[[SUMS]] offset 4 bytes 4
// RESULTS: program.launch @copy_rows(%[[PART]] {{[a-z_]+ [a-z0-9]+}}, %[[LOSS]] {{[a-z_]+ [a-z0-9]+}})
// RESULTS: program.launch @copy_rows(%{{.*}}, %[[COUNT]] {{[a-z_]+ [a-z0-9]+}})
// RESULTS: program.launch @copy_rows(%[[IDS]] {{[a-z_]+ [a-z0-9]+}}, %[[CORRECT]] {{[a-z_]+ [a-z0-9]+}})
module attributes {train.layout = [], train.offsets = array<i64>} {
  model.parameter @w : tensor<8x2xf32> {file = "a"}
  train.step evaluate batch 1 length 4 ["ids"] {
  ^bb0(%ids: tensor<1x4xi32>):
    %w = model.weight @w : tensor<8x2xf32>
    %x = model.embedding %ids, %w : (tensor<1x4xi32>, tensor<8x2xf32>) -> tensor<1x4x2xf32>
    %sums = model.column_sum %x : (tensor<1x4x2xf32>) -> tensor<2xf32>
    %a, %b = model.split %sums : (tensor<2xf32>) -> (tensor<1xf32>, tensor<1xf32>)
    train.result "loss_sum", %b : tensor<1xf32>
    train.result "label_count", %b : tensor<1xf32>
    train.result "correct", %ids : tensor<1x4xi32>
  }
}

//--- overwrite.mlir
// a is a result, so b adds to a copy of a.
// OVERWRITE: program.entry evaluate
// OVERWRITE: %[[NORM:.*]] = program.buffer result offset {{[0-9]+}} bytes 4
// OVERWRITE: program.launch @matmul(%{{.*}} read {{[a-z0-9]+}}, %{{.*}} read {{[a-z0-9]+}}, %[[NORM]] write {{[a-z0-9]+}})
// OVERWRITE: %[[B:.*]] = program.buffer activation bytes 4
// OVERWRITE: program.launch @copy_rows(%[[NORM]] {{[a-z_]+ [a-z0-9]+}}, %[[B]] {{[a-z_]+ [a-z0-9]+}})
// OVERWRITE: program.launch @matmul(%{{.*}} read {{[a-z0-9]+}}, %{{.*}} read {{[a-z0-9]+}}, %[[B]] read_write {{[a-z0-9]+}})
module attributes {train.layout = [], train.offsets = array<i64>} {
  model.parameter @w : tensor<1x4xf32> {file = "a"}
  model.parameter @e : tensor<8x4xf32> {file = "a"}
  train.step evaluate batch 1 length 1 ["ids"] {
  ^bb0(%ids: tensor<1x1xi32>):
    %w = model.weight @w : tensor<1x4xf32>
    %e = model.weight @e : tensor<8x4xf32>
    %x = model.embedding %ids, %e : (tensor<1x1xi32>, tensor<8x4xf32>) -> tensor<1x1x4xf32>
    %a = model.linear %x, %w : (tensor<1x1x4xf32>, tensor<1x4xf32>) -> tensor<1x1x1xf32>
    train.result "grad_norm", %a : tensor<1x1x1xf32>
    %b = model.linear %x, %w init %a : (tensor<1x1x4xf32>, tensor<1x4xf32>, tensor<1x1x1xf32>) -> tensor<1x1x1xf32>
    %n = model.column_sum %b : (tensor<1x1x1xf32>) -> tensor<1xf32>
  }
}

//--- stored.mlir
// One value is stored to two flat arenas: its producer writes one, a copy
// writes the second.
// STORED: program.entry update
// STORED: %[[P:.*]] = program.buffer trainable offset 4096 bytes 4096
// STORED: program.launch @add(%[[P]] {{[a-z_]+ [a-z0-9]+}}, %[[P]] {{[a-z_]+ [a-z0-9]+}}, %[[P]] {{[a-z_]+ [a-z0-9]+}})
// STORED: %[[M:.*]] = program.buffer state offset 0 bytes 4096
// STORED: program.launch @copy_rows(%[[P]] read {{[a-z0-9]+}}, %[[M]] write {{[a-z0-9]+}}) constants [1, 1024, 1024, 1024]
module attributes {train.layout = [@w], train.offsets = array<i64: 1024>} {
  model.parameter @w : tensor<32x32xf32> {init = "zero", trainable}
  train.step update batch 0 length 0 [] {
    %p = train.flat trainable : tensor<1x1024xf32>
    %q = model.add %p, %p : tensor<1x1024xf32>
    train.store_flat trainable, %q : tensor<1x1024xf32>
    train.store_flat state, %q : tensor<1x1024xf32>
  }
}

//--- later.mlir
// p is read again after q is computed from p. So q is computed in a separate
// buffer, and copied to p's arena when q is stored.
// LATER: program.entry update
// LATER: %[[P:.*]] = program.buffer trainable offset 4096 bytes 4096
// LATER: %[[Q:.*]] = program.buffer activation bytes 4096
// LATER: program.launch @add(%[[P]] {{[a-z_]+ [a-z0-9]+}}, %[[P]] {{[a-z_]+ [a-z0-9]+}}, %[[Q]] {{[a-z_]+ [a-z0-9]+}})
// LATER: program.launch @column_sum(%[[P]]
// LATER: program.launch @copy_rows(%[[Q]] {{[a-z_]+ [a-z0-9]+}}, %[[P]] {{[a-z_]+ [a-z0-9]+}})
module attributes {train.layout = [@w], train.offsets = array<i64: 1024>} {
  model.parameter @w : tensor<32x32xf32> {init = "zero", trainable}
  train.step update batch 0 length 0 [] {
    %p = train.flat trainable : tensor<1x1024xf32>
    %q = model.add %p, %p : tensor<1x1024xf32>
    %n = model.column_sum %p : (tensor<1x1024xf32>) -> tensor<1024xf32>
    train.store_flat trainable, %q : tensor<1x1024xf32>
  }
}

//--- dense.mlir
// A kernel without a row stride needs contiguous rows, so the range is copied.
// DENSE: program.entry evaluate
// DENSE: %[[COPY:.*]] = program.buffer activation bytes 64
// DENSE: %[[PART:.*]] = program.view %{{.*}} offset 16 bytes 112
// DENSE: program.launch @copy_rows(%[[PART]] read {{[a-z0-9]+}}, %[[COPY]] write {{[a-z0-9]+}}) constants [4, 4, 8, 4]
// DENSE: program.launch @clip_norm(%[[COPY]]
module attributes {train.layout = [], train.offsets = array<i64>} {
  model.parameter @w : tensor<8x8xf32> {file = "a"}
  train.step evaluate batch 1 length 4 ["ids"] {
  ^bb0(%ids: tensor<1x4xi32>):
    %w = model.weight @w : tensor<8x8xf32>
    %x = model.embedding %ids, %w : (tensor<1x4xi32>, tensor<8x8xf32>) -> tensor<1x4x8xf32>
    %a, %b = model.split %x : (tensor<1x4x8xf32>) -> (tensor<1x4x4xf32>, tensor<1x4x4xf32>)
    %norm, %scale = train.clip_norm %b : (tensor<1x4x4xf32>) -> (tensor<1xf32>, tensor<1xf32>)
    train.result "grad_norm", %norm : tensor<1xf32>
  }
}
