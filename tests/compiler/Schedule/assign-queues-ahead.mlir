// SPDX-License-Identifier: MIT

// Launches that only prepare a frozen weight run on the copy queue of a target
// that has one beside compute, ahead of who reads what they make.

// RUN: qlora-opt %s --split-input-file --assign-queues="target=cuda" | FileCheck %s
// RUN: qlora-opt %s --split-input-file --assign-queues=target=cuda --remark-policy=all --remarks-filter=assign-queues -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: qlora-opt %s --split-input-file --assign-queues="target=cuda in-order" | FileCheck %s --check-prefix=ORDER
// RUN: qlora-opt %s --split-input-file --assign-queues="target=cpu" | FileCheck %s --check-prefix=ORDER

// ORDER-NOT: program.record
// ORDER-NOT: queue =

// REMARK: remark: [Passed] queues | Category:assign-queues | Remark="evaluate 8: 3 launches ahead, 5 events

// The first needs no memory that anyone used before. Each other one starts
// when the reader of the one before it may, and so beside it.
// CHECK-LABEL: program.entry evaluate
// CHECK: program.launch @decode{{.*}}label "w0" {{.*}}queue = 2
// CHECK-NEXT: program.record 0 on 2
// CHECK-NEXT: program.fill
// CHECK: program.record 1 on 0
// CHECK: program.wait 1 on 2
// CHECK-NEXT: program.launch @decode{{.*}}label "w1" {{.*}}queue = 2
// CHECK-NEXT: program.record 2 on 2
// CHECK-NEXT: program.wait 0 on 0
// CHECK-NEXT: program.launch @matmul{{.*}}label "y0"
// CHECK: program.record 3 on 0
// CHECK: program.wait 3 on 2
// CHECK-NEXT: program.launch @decode{{.*}}label "w2" {{.*}}queue = 2
// CHECK-NEXT: program.record 4 on 2
// CHECK-NEXT: program.wait 2 on 0
// CHECK-NEXT: program.launch @matmul{{.*}}label "y1"
// CHECK-NEXT: program.wait 4 on 0
// CHECK-NEXT: program.launch @matmul{{.*}}label "y2"
// The weights are ready: the backward's read waits for nothing.
// CHECK-NEXT: program.launch @matmul{{.*}}label "y3"
// CHECK-NEXT: {{^ *}$}}
module {
program.kernel @decode.cuda attributes {op = "decode", implementation = "cuda"} {}
program.kernel @matmul.cublaslt attributes {op = "matmul", implementation = "cublaslt"} {}
program.arena frozen bytes 196608 alignment 64
program.arena activation bytes 0 alignment 64
program.entry evaluate batch 1 length 8 {
  %x = program.buffer activation bytes 4096 dtype 0
  %y = program.buffer activation bytes 4096 dtype 0
  program.fill %x
  %w0 = program.buffer frozen offset 0 bytes 32768 dtype 1
  %s0 = program.buffer activation bytes 65536 dtype 0
  program.launch @decode.cuda(%w0, %s0) access [1, 2] constants [128, 128, 0, 0] rows 0 label "w0" {dtypes = array<i64: 1, 0>, absent = array<i64>}
  program.launch @matmul.cublaslt(%x, %s0, %y) access [1, 1, 2] constants [8, 128, 128, 128, 128, 128, 0, 1, 4607182418800017408, 0] rows 0 label "y0" {dtypes = array<i64: 0, 0, 0>, absent = array<i64: 3>}
  %w1 = program.buffer frozen offset 32768 bytes 32768 dtype 1
  %s1 = program.buffer activation bytes 65536 dtype 0
  program.launch @decode.cuda(%w1, %s1) access [1, 2] constants [128, 128, 0, 0] rows 0 label "w1" {dtypes = array<i64: 1, 0>, absent = array<i64>}
  program.launch @matmul.cublaslt(%y, %s1, %x) access [1, 1, 2] constants [8, 128, 128, 128, 128, 128, 0, 1, 4607182418800017408, 0] rows 0 label "y1" {dtypes = array<i64: 0, 0, 0>, absent = array<i64: 3>}
  %w2 = program.buffer frozen offset 65536 bytes 32768 dtype 1
  %s2 = program.buffer activation bytes 65536 dtype 0
  program.launch @decode.cuda(%w2, %s2) access [1, 2] constants [128, 128, 0, 0] rows 0 label "w2" {dtypes = array<i64: 1, 0>, absent = array<i64>}
  program.launch @matmul.cublaslt(%x, %s2, %y) access [1, 1, 2] constants [8, 128, 128, 128, 128, 128, 0, 1, 4607182418800017408, 0] rows 0 label "y2" {dtypes = array<i64: 0, 0, 0>, absent = array<i64: 3>}
  program.launch @matmul.cublaslt(%y, %s1, %x) access [1, 1, 2] constants [8, 128, 128, 128, 128, 128, 0, 1, 4607182418800017408, 0] rows 0 label "y3" {dtypes = array<i64: 0, 0, 0>, absent = array<i64: 3>}
}
}

// -----

// Late, for its memory: the GEMM right before is enough to hide the decode of
// %w1, so the one before that runs without it. By what an operand is, not by
// the kernel's name: a copy of frozen rows into both halves of one buffer is
// such a launch (both halves go together), a copy of an activation is none,
// nor is one into a buffer that was in use before.
// REMARK: remark: [Passed] queues | Category:assign-queues | Remark="evaluate 8: 2 launches ahead, 2 events
// CHECK-LABEL: program.entry evaluate
// CHECK: program.launch @matmul{{.*}}label "y0"
// CHECK-NOT: program.launch
// CHECK: program.record 0 on 0
// CHECK-NEXT: program.wait 0 on 2
// CHECK-NEXT: program.launch @copy_rows{{.*}}label "upper" {{.*}}queue = 2
// CHECK: program.launch @copy_rows{{.*}}label "lower" {{.*}}queue = 2
// CHECK-NEXT: program.record 1 on 2
// CHECK-NEXT: program.launch @matmul{{.*}}label "y1"
// CHECK-NEXT: program.launch @copy_rows{{.*}}label "activation" {absent = array<i64>, dtypes = array<i64: 1, 1>}
// CHECK-NEXT: program.wait 1 on 0
// CHECK-NEXT: program.launch @matmul{{.*}}label "y2"
// CHECK-NEXT: program.launch @copy_rows{{.*}}label "in use" {absent = array<i64>, dtypes = array<i64: 1, 1>}
module {
program.kernel @copy_rows.cuda attributes {op = "copy_rows", implementation = "cuda"} {}
program.kernel @matmul.cublaslt attributes {op = "matmul", implementation = "cublaslt"} {}
program.arena frozen bytes 33554432 alignment 64
program.arena activation bytes 0 alignment 64
program.entry evaluate batch 1 length 8 {
  %x = program.buffer activation bytes 33554432 dtype 1
  %y = program.buffer activation bytes 33554432 dtype 1
  %z = program.buffer activation bytes 33554432 dtype 1
  program.fill %x
  program.launch @matmul.cublaslt(%x, %x, %y) access [1, 1, 2] constants [4096, 4096, 4096, 4096, 4096, 4096, 0, 1, 4607182418800017408, 0] rows 0 label "y0" {dtypes = array<i64: 1, 1, 1>, absent = array<i64: 3>}
  program.launch @matmul.cublaslt(%y, %x, %z) access [1, 1, 2] constants [4096, 4096, 4096, 4096, 4096, 4096, 0, 1, 4607182418800017408, 0] rows 0 label "y1" {dtypes = array<i64: 1, 1, 1>, absent = array<i64: 3>}
  program.launch @copy_rows.cuda(%z, %y) access [1, 2] constants [4096, 4096, 4096, 4096] rows 0 label "activation" {dtypes = array<i64: 1, 1>, absent = array<i64>}
  %w = program.buffer frozen offset 0 bytes 33554432 dtype 1
  %s = program.buffer activation bytes 33554432 dtype 1
  %upper = program.view %s offset 0 bytes 16777216
  %from = program.view %w offset 0 bytes 16777216
  program.launch @copy_rows.cuda(%from, %upper) access [1, 2] constants [2048, 4096, 4096, 4096] rows 0 label "upper" {dtypes = array<i64: 1, 1>, absent = array<i64>}
  %lower = program.view %s offset 16777216 bytes 16777216
  program.launch @copy_rows.cuda(%from, %lower) access [1, 2] constants [2048, 4096, 4096, 4096] rows 0 label "lower" {dtypes = array<i64: 1, 1>, absent = array<i64>}
  program.launch @matmul.cublaslt(%z, %s, %x) access [1, 1, 2] constants [4096, 4096, 4096, 4096, 4096, 4096, 0, 1, 4607182418800017408, 0] rows 0 label "y2" {dtypes = array<i64: 1, 1, 1>, absent = array<i64: 3>}
  program.launch @copy_rows.cuda(%from, %y) access [1, 2] constants [2048, 4096, 4096, 4096] rows 0 label "in use" {dtypes = array<i64: 1, 1>, absent = array<i64>}
  program.launch @matmul.cublaslt(%y, %x, %z) access [1, 1, 2] constants [4096, 4096, 4096, 4096, 4096, 4096, 0, 1, 4607182418800017408, 0] rows 0 label "y3" {dtypes = array<i64: 1, 1, 1>, absent = array<i64: 3>}
}
}
