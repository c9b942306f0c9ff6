// SPDX-License-Identifier: MIT

// Every op of the program dialect is printed as it was read.

// RUN: qlora-opt %s | qlora-opt | FileCheck %s
// RUN: qlora-opt %s --mlir-print-op-generic | qlora-opt | FileCheck %s

// CHECK: program.arena frozen bytes 4096 alignment 64
program.arena frozen bytes 4096 alignment 64
// CHECK: program.parameter "w" frozen offset 0 bytes 128 [8, 8] {block = 0 : i64, double_quant = false, dtype = 1 : i64, file = "a.safetensors", file_dtype = 1 : i64, init = 0 : i64, quantization = 0 : i64, role = 0 : i64}
program.parameter "w" frozen offset 0 bytes 128 [8, 8] {block = 0, double_quant = false, dtype = 1, file = "a.safetensors", file_dtype = 1, init = 0, quantization = 0, role = 0}
// CHECK: program.kernel @matmul attributes {op = "matmul"} {
program.kernel @matmul attributes {op = "matmul"} {
}
// CHECK: program.kernel @matmul.onednn attributes {implementation = "onednn", op = "matmul"} {
program.kernel @matmul.onednn attributes {op = "matmul", implementation = "onednn"} {
}
// CHECK: program.kernel @twice attributes {columns = 8 : i64, dtypes = array<i64: 0, 0>, groups = array<i64: 1, 1>, maps = [#model.map<full>], strides = array<i64: 8, 8>} {
// CHECK-NEXT: ^bb0(%[[X:.*]]: tensor<8xf32>):
program.kernel @twice attributes {columns = 8, maps = [#model.map<full>], dtypes = array<i64: 0, 0>, strides = array<i64: 8, 8>, groups = array<i64: 1, 1>} {
^bb0(%x: tensor<8xf32>):
  %y = arith.addf %x, %x : tensor<8xf32>
  model.row_yield %y : tensor<8xf32>
}

// CHECK: program.entry accumulate_last batch 2 length 4 {
program.entry accumulate_last batch 2 length 4 {
  // CHECK: %[[IN:.*]] = program.buffer input offset 64 bytes 32 dtype 3
  %in = program.buffer input offset 64 bytes 32 dtype 3
  // CHECK: program.bind 0 %[[IN]]
  program.bind 0 %in
  // CHECK: %[[A:.*]] = program.buffer activation bytes 256 dtype 0 {label = "x", saved}
  %a = program.buffer activation bytes 256 dtype 0 {label = "x", saved}
  // CHECK: %[[B:.*]] = program.buffer gradient offset 0 bytes 256 dtype 0
  %b = program.buffer gradient offset 0 bytes 256 dtype 0
  // CHECK: %[[V:.*]] = program.view %[[A]] offset 64 bytes 192
  %v = program.view %a offset 64 bytes 192
  // CHECK: program.fill %[[V]]
  program.fill %v
  // CHECK: program.copy %[[A]] from %[[B]]
  program.copy %a from %b
  // CHECK: program.launch @twice(%[[A]], %[[B]]) access [1, 2] constants [] rows 8 label "twice" {absent = array<i64>, dtypes = array<i64: 0, 0>}
  program.launch @twice(%a, %b) access [1, 2] constants [] rows 8 label "twice" {absent = array<i64>, dtypes = array<i64: 0, 0>}
  // CHECK: program.record 0 on 0
  program.record 0 on 0
  // CHECK: program.wait 0 on 1
  program.wait 0 on 1
  // CHECK: program.all_reduce 0 %[[B]]
  program.all_reduce 0 %b
}
// CHECK: program.entry accumulate batch 2 length 4 {
program.entry accumulate batch 2 length 4 {
}
// CHECK: program.entry update batch 0 length 0 {
program.entry update batch 0 length 0 {
}
// CHECK: program.entry evaluate batch 2 length 4 {
program.entry evaluate batch 2 length 4 {
}
