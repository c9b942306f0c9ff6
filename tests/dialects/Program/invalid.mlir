// SPDX-License-Identifier: MIT

// Every labelled constraint of the program dialect, by its label.

// RUN: qlora-opt %s --split-input-file --verify-diagnostics

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
  %0 = program.buffer activation bytes 0 dtype 0
}

// -----

program.entry update batch 0 length 0 {
  // expected-error @+1 {{(C1) expects a positive number of bytes at an offset of at least 0, but got 4 at -4}}
  %0 = program.buffer activation offset -4 bytes 4 dtype 0
}

// -----

program.entry update batch 0 length 0 {
  %0 = program.buffer activation bytes 64 dtype 0
  // 32 + 40 = 72 are more than 64.
  // expected-error @+1 {{(C1) expects a part of a program.buffer, but got 40 bytes at 32 of 64}}
  %1 = program.view %0 offset 32 bytes 40
}

// -----

program.entry update batch 0 length 0 {
  %0 = program.buffer activation bytes 64 dtype 0
  // expected-error @+1 {{(C1) expects a part of a program.buffer, but got 16 bytes at -8 of 64}}
  %1 = program.view %0 offset -8 bytes 16
}

// -----

program.entry update batch 0 length 0 {
  // expected-error @+1 {{(C1) refers to @add, which is not a program.kernel}}
  program.launch @add() access [] constants [] rows 1 label "add" {absent = array<i64>, dtypes = array<i64>}
}

// -----

program.kernel @matmul attributes {op = "matmul"} {
}
program.entry update batch 0 length 0 {
  %0 = program.buffer activation bytes 64 dtype 0
  // expected-error @+1 {{(C2) expects one access and dtype for each of 1 operands, but got 2 and 1}}
  program.launch @matmul(%0) access [1, 2] constants [] rows 0 label "matmul" {absent = array<i64>, dtypes = array<i64: 0>}
}
