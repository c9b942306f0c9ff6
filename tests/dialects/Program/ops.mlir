// SPDX-License-Identifier: MIT

// Every op of the program dialect can be printed and parsed again.

// RUN: qlora-opt %s | qlora-opt | FileCheck %s
// RUN: qlora-opt %s --mlir-print-op-generic | qlora-opt | FileCheck %s

// CHECK: program.arena frozen bytes 4096 alignment 64
program.arena frozen bytes 4096 alignment 64
// CHECK: program.parameter "w" frozen offset 0 bytes 128 [8, 8] : bf16 from bf16 frozen init file quantization none {block = 0 : i64, double_quant = false, file = "a.safetensors"}
program.parameter "w" frozen offset 0 bytes 128 [8, 8] : bf16 from bf16 frozen init file quantization none {block = 0, double_quant = false, file = "a.safetensors"}
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
  // CHECK: %[[IN:.*]] = program.buffer input offset 64 bytes 32 : i32
  %in = program.buffer input offset 64 bytes 32 : i32
  // CHECK: program.bind ids %[[IN]]
  program.bind ids %in
  // CHECK: %[[A:.*]] = program.buffer activation bytes 256 : f32 {label = "x", saved}
  %a = program.buffer activation bytes 256 : f32 {label = "x", saved}
  // CHECK: %[[B:.*]] = program.buffer gradient offset 0 bytes 256 : f32
  %b = program.buffer gradient offset 0 bytes 256 : f32
  // CHECK: %[[V:.*]] = program.view %[[A]] offset 64 bytes 192
  %v = program.view %a offset 64 bytes 192
  // CHECK: program.fill %[[V]]
  program.fill %v
  // CHECK: program.copy %[[A]] from %[[B]]
  program.copy %a from %b
  // CHECK: program.launch @twice(%[[A]] read f32, %[[B]] write f32) constants [] rows 8 label "twice"
  program.launch @twice(%a read f32, %b write f32) constants [] rows 8 label "twice"
  // CHECK: program.record 0 on compute
  program.record 0 on compute
  // CHECK: program.wait 0 on communication
  program.wait 0 on communication
  // CHECK: program.collective all_reduce 0 %[[B]]{{$}}
  program.collective all_reduce 0 %b
  %c = program.buffer activation bytes 64 : f32
  // CHECK: program.collective all_gather 1 %[[B]] from %[[C:.*]]{{$}}
  program.collective all_gather 1 %b from %c
  // CHECK: program.collective reduce_scatter 2 %[[C]] from %[[B]]{{$}}
  program.collective reduce_scatter 2 %c from %b
  // CHECK: program.collective broadcast 3 %[[B]] peer 2{{$}}
  program.collective broadcast 3 %b peer 2 over dp
  // CHECK: program.collective all_to_all 4 %[[A]] from %[[B]]
  program.collective all_to_all 4 %a from %b
  // CHECK: program.collective send 5 %[[B]] peer 1
  program.collective send 5 %b peer 1
  // CHECK: program.collective recv 5 %[[B]] peer -1
  program.collective recv 5 %b peer -1
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
