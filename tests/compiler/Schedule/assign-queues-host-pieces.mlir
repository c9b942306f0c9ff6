// SPDX-License-Identifier: MIT

// If shards of weights come from the host memory of two ranks, the weights are
// decoded ahead, after the ranks gather them.

// RUN: qlora-opt %s --assign-queues=target=cuda | FileCheck %s
// RUN: qlora-opt %s --assign-queues=target=cuda --remark-policy=all --remarks-filter=assign-queues -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK

// REMARK: evaluate 8: 3 launches ahead

// CHECK: program.copy {{.*}} on communication
// CHECK: program.collective all_gather 0
// CHECK: program.record [[WHOLE:[0-9]+]] on communication
// CHECK: program.wait [[WHOLE]] on copy
// CHECK-NEXT: program.launch @decode{{.*}}label "w0" {{.*}}on copy

module attributes {model.mesh = #model.mesh<fsdp = 2>} {
program.kernel @decode.cuda attributes {op = "decode", implementation = "cuda"} {}
program.kernel @matmul.cublaslt attributes {op = "matmul", implementation = "cublaslt"} {}
program.arena host bytes 196608 alignment 64
program.arena activation bytes 0 alignment 64
program.entry evaluate batch 1 length 8 {
  %x = program.buffer activation bytes 4096 : f32
  %y = program.buffer activation bytes 4096 : f32
  program.fill %x
  %p0 = program.buffer activation bytes 16384 : u8
  %h0 = program.buffer host offset 0 bytes 16384 : u8
  program.copy %p0 from %h0 on communication
  %w0 = program.buffer activation bytes 32768 : u8
  program.collective all_gather 0 %w0 from %p0 over fsdp
  %p1 = program.buffer activation bytes 16384 : u8
  %h1 = program.buffer host offset 16384 bytes 16384 : u8
  program.copy %p1 from %h1 on communication
  %w1 = program.buffer activation bytes 32768 : u8
  program.collective all_gather 1 %w1 from %p1 over fsdp
  %p2 = program.buffer activation bytes 16384 : u8
  %h2 = program.buffer host offset 32768 bytes 16384 : u8
  program.copy %p2 from %h2 on communication
  %w2 = program.buffer activation bytes 32768 : u8
  program.collective all_gather 2 %w2 from %p2 over fsdp
  %s0 = program.buffer activation bytes 65536 : f32
  program.launch @decode.cuda(%w0 read bf16, %s0 write f32) constants [128, 128, 0, 0] rows 0 label "w0"
  program.launch @matmul.cublaslt(%x read f32, %s0 read f32, %y write f32) absent [3] constants [8, 128, 128, 128, 128, 128, 0, 1, 4607182418800017408, 0] rows 0 label "y0" 
  %s1 = program.buffer activation bytes 65536 : f32
  program.launch @decode.cuda(%w1 read bf16, %s1 write f32) constants [128, 128, 0, 0] rows 0 label "w1"
  program.launch @matmul.cublaslt(%y read f32, %s1 read f32, %x write f32) absent [3] constants [8, 128, 128, 128, 128, 128, 0, 1, 4607182418800017408, 0] rows 0 label "y1" 
  %s2 = program.buffer activation bytes 65536 : f32
  program.launch @decode.cuda(%w2 read bf16, %s2 write f32) constants [128, 128, 0, 0] rows 0 label "w2"
  program.launch @matmul.cublaslt(%x read f32, %s2 read f32, %y write f32) absent [3] constants [8, 128, 128, 128, 128, 128, 0, 1, 4607182418800017408, 0] rows 0 label "y2" 
}
}
