// SPDX-License-Identifier: MIT

// Violates every labelled constraint (C1, C2, ...) of the program dialect.

// RUN: qlora-opt %s --split-input-file --verify-diagnostics

// expected-error @+1 {{(C1) expects only the state arena on_host, but got gradient}}
program.arena gradient bytes 64 alignment 64 {on_host}

// -----

// expected-error @+1 {{(C1) expects either the name of a library op or a body}}
program.kernel @nothing {
}

// -----

// expected-error @+1 {{(C1) 'sorting' is not in Kernels.def}}
program.kernel @sorting attributes {op = "sorting"} {
}

// -----

program.entry update batch 0 length 0 {
  // expected-error @+1 {{(C1) expects a positive number of bytes at an offset of at least 0, but got 0 at 0}}
  %0 = program.buffer activation bytes 0 : f32
}

// -----

program.entry update batch 0 length 0 {
  // expected-error @+1 {{(C1) expects a positive number of bytes at an offset of at least 0, but got 4 at -4}}
  %0 = program.buffer activation offset -4 bytes 4 : f32
}

// -----

program.entry update batch 0 length 0 {
  %0 = program.buffer activation bytes 64 : f32
  // 32 + 40 = 72 are more than 64.
  // expected-error @+1 {{(C1) expects a range of a program.buffer, but got 40 bytes at 32 of 64}}
  %1 = program.view %0 offset 32 bytes 40
}

// -----

program.entry update batch 0 length 0 {
  %0 = program.buffer activation bytes 64 : f32
  // expected-error @+1 {{(C1) expects a range of a program.buffer, but got 16 bytes at -8 of 64}}
  %1 = program.view %0 offset -8 bytes 16
}

// -----

program.entry update batch 0 length 0 {
  // expected-error @+1 {{(C1) refers to @add, which is not a program.kernel}}
  program.launch @add() constants [] rows 1 label "add"
}

// -----

program.kernel @matmul attributes {op = "matmul"} {
}
program.entry update batch 0 length 0 {
  %0 = program.buffer activation bytes 64 : f32
  // expected-error @+1 {{(C2) expects one access and dtype for each of 1 operands, but got 2 and 1}}
  "program.launch"(%0) {kernel = @matmul, access = array<i64: 1, 2>, dtypes = array<i64: 0>, constants = array<i64>, rows = 0 : i64, label = "matmul"} : (!program.buffer) -> ()
}

// -----

program.kernel @matmul attributes {op = "matmul"} {
}
program.entry update batch 0 length 0 {
  %0 = program.buffer activation bytes 64 : f32
  // expected-error @+1 {{(C2) expects an access and a dtype, but got 4 and 0}}
  "program.launch"(%0) {kernel = @matmul, access = array<i64: 4>, dtypes = array<i64: 0>, constants = array<i64>, rows = 0 : i64, label = "matmul"} : (!program.buffer) -> ()
}

// -----

program.entry update batch 0 length 0 {
  // expected-error @+2 {{to be one of: compute, communication, copy}}
  // expected-error @+2 {{failed to parse Program_QueueAttr}}
  program.record 0 on disk
}

// -----

program.entry update batch 0 length 0 {
  %0 = program.buffer activation bytes 64 : f32
  // expected-error @+1 {{(C1) expects a source for all_gather}}
  program.collective all_gather 0 %0
}

// -----

program.entry update batch 0 length 0 {
  %0 = program.buffer activation bytes 64 : f32
  // expected-error @+1 {{(C1) expects no source for broadcast}}
  program.collective broadcast 0 %0 from %0
}

// -----

program.entry update batch 0 length 0 {
  %0 = program.buffer activation bytes 64 : u8
  // expected-error @+1 {{(C2) cannot be of u8 and u8}}
  program.collective all_reduce 0 %0
}

// -----

program.entry update batch 0 length 0 {
  %0 = program.buffer activation bytes 64 : f32
  %1 = program.buffer activation bytes 64 : bf16
  // expected-error @+1 {{(C2) cannot be of f32 and bf16}}
  program.collective all_to_all 0 %0 from %1
}

// -----

program.entry update batch 0 length 0 {
  %0 = program.buffer activation bytes 64 : f32
  %1 = program.buffer activation bytes 40 : f32
  // expected-error @+1 {{(C3) has 64 and 40 bytes}}
  program.collective all_gather 0 %0 from %1
}

// -----

program.entry update batch 0 length 0 {
  %0 = program.buffer activation bytes 64 : f32
  // expected-error @+1 {{(C4) send cannot have the peer 0}}
  program.collective send 0 %0
}

// -----

program.entry update batch 0 length 0 {
  %0 = program.buffer activation bytes 64 : f32
  // expected-error @+1 {{(C4) all_reduce cannot have the peer 1}}
  program.collective all_reduce 0 %0 peer 1
}
