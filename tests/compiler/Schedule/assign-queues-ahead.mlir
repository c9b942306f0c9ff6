// SPDX-License-Identifier: MIT

// Launches that only prepare a frozen weight run on the copy queue, ahead of
// their first consumer, if the target runs that queue concurrently with the
// compute queue.

// RUN: qlora-opt %s --split-input-file --assign-queues="target=cuda" | FileCheck %s
// RUN: qlora-opt %s --split-input-file --assign-queues=target=cuda --remark-policy=all --remarks-filter=assign-queues -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: qlora-opt %s --split-input-file --assign-queues="target=cuda in-order" | FileCheck %s --check-prefix=ORDER
// RUN: qlora-opt %s --split-input-file --assign-queues="target=cpu" | FileCheck %s --check-prefix=ORDER

// ORDER-NOT: program.record
// ORDER-NOT: queue =

// REMARK: remark: [Passed] queues | Category:assign-queues | Remark="evaluate 8: 3 launches ahead, 5 events

// The decode w0 waits for nothing, because no earlier command uses its output
// buffer. Each later decode starts together with the GEMM that reads the
// previous decode's result, so both run concurrently.
// CHECK-LABEL: program.entry evaluate
// CHECK: program.launch @decode{{.*}}label "w0" {{.*}}on copy
// CHECK-NEXT: program.record 0 on copy
// CHECK-NEXT: program.fill
// CHECK: program.record 1 on compute
// CHECK: program.wait 1 on copy
// CHECK-NEXT: program.launch @decode{{.*}}label "w1" {{.*}}on copy
// CHECK-NEXT: program.record 2 on copy
// CHECK-NEXT: program.wait 0 on compute
// CHECK-NEXT: program.launch @matmul{{.*}}label "y0"
// CHECK: program.record 3 on compute
// CHECK: program.wait 3 on copy
// CHECK-NEXT: program.launch @decode{{.*}}label "w2" {{.*}}on copy
// CHECK-NEXT: program.record 4 on copy
// CHECK-NEXT: program.wait 2 on compute
// CHECK-NEXT: program.launch @matmul{{.*}}label "y1"
// CHECK-NEXT: program.wait 4 on compute
// CHECK-NEXT: program.launch @matmul{{.*}}label "y2"
// The launch for y3 waits for nothing: its weights were prepared earlier.
// CHECK-NEXT: program.launch @matmul{{.*}}label "y3"
// CHECK-NEXT: {{^ *}$}}
module {
program.kernel @decode.cuda attributes {op = "decode", implementation = "cuda"} {}
program.kernel @matmul.cublaslt attributes {op = "matmul", implementation = "cublaslt"} {}
program.arena frozen bytes 196608 alignment 64
program.arena activation bytes 0 alignment 64
program.entry evaluate batch 1 length 8 {
  %x = program.buffer activation bytes 4096 : f32
  %y = program.buffer activation bytes 4096 : f32
  program.fill %x
  %w0 = program.buffer frozen offset 0 bytes 32768 : bf16
  %s0 = program.buffer activation bytes 65536 : f32
  program.launch @decode.cuda(%w0 read bf16, %s0 write f32) constants [128, 128, 0, 0] rows 0 label "w0"
  program.launch @matmul.cublaslt(%x read f32, %s0 read f32, %y write f32) absent [3] constants [8, 128, 128, 128, 128, 128, 0, 1, 4607182418800017408, 0] rows 0 label "y0"
  %w1 = program.buffer frozen offset 32768 bytes 32768 : bf16
  %s1 = program.buffer activation bytes 65536 : f32
  program.launch @decode.cuda(%w1 read bf16, %s1 write f32) constants [128, 128, 0, 0] rows 0 label "w1"
  program.launch @matmul.cublaslt(%y read f32, %s1 read f32, %x write f32) absent [3] constants [8, 128, 128, 128, 128, 128, 0, 1, 4607182418800017408, 0] rows 0 label "y1"
  %w2 = program.buffer frozen offset 65536 bytes 32768 : bf16
  %s2 = program.buffer activation bytes 65536 : f32
  program.launch @decode.cuda(%w2 read bf16, %s2 write f32) constants [128, 128, 0, 0] rows 0 label "w2"
  program.launch @matmul.cublaslt(%x read f32, %s2 read f32, %y write f32) absent [3] constants [8, 128, 128, 128, 128, 128, 0, 1, 4607182418800017408, 0] rows 0 label "y2"
  program.launch @matmul.cublaslt(%y read f32, %s1 read f32, %x write f32) absent [3] constants [8, 128, 128, 128, 128, 128, 0, 1, 4607182418800017408, 0] rows 0 label "y3"
}
}

// -----

// Operands, not the kernel's name, decide which launches run ahead:
//
//   upper, lower   copy frozen rows into the halves of a buffer, so they run
//                  ahead of y2, which reads the buffer
//   activation     copies an activation, so it does not
//   in use         copies into a buffer that was in use before, so it does not
//
// To save memory, launches start as late as possible. y1 is long enough to hide
// both copies, so they start after y0.
// REMARK: remark: [Passed] queues | Category:assign-queues | Remark="evaluate 8: 2 launches ahead, 2 events
// CHECK-LABEL: program.entry evaluate
// CHECK: program.launch @matmul{{.*}}label "y0"
// CHECK-NOT: program.launch
// CHECK: program.record 0 on compute
// CHECK-NEXT: program.wait 0 on copy
// CHECK-NEXT: program.launch @copy_rows{{.*}}label "upper" {{.*}}on copy
// CHECK: program.launch @copy_rows{{.*}}label "lower" {{.*}}on copy
// CHECK-NEXT: program.record 1 on copy
// CHECK-NEXT: program.launch @matmul{{.*}}label "y1"
// CHECK-NEXT: program.launch @copy_rows{{.*}}label "activation"{{$}}
// CHECK-NEXT: program.wait 1 on compute
// CHECK-NEXT: program.launch @matmul{{.*}}label "y2"
// CHECK-NEXT: program.launch @copy_rows{{.*}}label "in use"{{$}}
module {
program.kernel @copy_rows.cuda attributes {op = "copy_rows", implementation = "cuda"} {}
program.kernel @matmul.cublaslt attributes {op = "matmul", implementation = "cublaslt"} {}
program.arena frozen bytes 33554432 alignment 64
program.arena activation bytes 0 alignment 64
program.entry evaluate batch 1 length 8 {
  %x = program.buffer activation bytes 33554432 : bf16
  %y = program.buffer activation bytes 33554432 : bf16
  %z = program.buffer activation bytes 33554432 : bf16
  program.fill %x
  program.launch @matmul.cublaslt(%x read bf16, %x read bf16, %y write bf16) absent [3] constants [4096, 4096, 4096, 4096, 4096, 4096, 0, 1, 4607182418800017408, 0] rows 0 label "y0"
  program.launch @matmul.cublaslt(%y read bf16, %x read bf16, %z write bf16) absent [3] constants [4096, 4096, 4096, 4096, 4096, 4096, 0, 1, 4607182418800017408, 0] rows 0 label "y1"
  program.launch @copy_rows.cuda(%z read bf16, %y write bf16) constants [4096, 4096, 4096, 4096] rows 0 label "activation"
  %w = program.buffer frozen offset 0 bytes 33554432 : bf16
  %s = program.buffer activation bytes 33554432 : bf16
  %upper = program.view %s offset 0 bytes 16777216
  %from = program.view %w offset 0 bytes 16777216
  program.launch @copy_rows.cuda(%from read bf16, %upper write bf16) constants [2048, 4096, 4096, 4096] rows 0 label "upper"
  %lower = program.view %s offset 16777216 bytes 16777216
  program.launch @copy_rows.cuda(%from read bf16, %lower write bf16) constants [2048, 4096, 4096, 4096] rows 0 label "lower"
  program.launch @matmul.cublaslt(%z read bf16, %s read bf16, %x write bf16) absent [3] constants [4096, 4096, 4096, 4096, 4096, 4096, 0, 1, 4607182418800017408, 0] rows 0 label "y2"
  program.launch @copy_rows.cuda(%from read bf16, %y write bf16) constants [2048, 4096, 4096, 4096] rows 0 label "in use"
  program.launch @matmul.cublaslt(%y read bf16, %x read bf16, %z write bf16) absent [3] constants [4096, 4096, 4096, 4096, 4096, 4096, 0, 1, 4607182418800017408, 0] rows 0 label "y3"
}
}
