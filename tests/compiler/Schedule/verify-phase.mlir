// SPDX-License-Identifier: MIT

// What must hold after the phase program; verify-phase-invalid.mlir has the
// earlier phases.

// RUN: qlora-opt %s --split-input-file --verify-diagnostics --verify-phase="phase=program"

program.kernel @k attributes {op = "copy_rows"} {}
program.entry evaluate batch 1 length 8 {
  %a = program.buffer activation offset 0 bytes 64 dtype 0
  %b = program.buffer activation offset 64 bytes 64 dtype 0
  // expected-error @below {{reads a buffer that nothing has written}}
  program.launch @k(%a, %b) access [1, 2] constants [1, 16, 16, 16] rows 0 label "copy" {absent = array<i64>, dtypes = array<i64: 0, 0>}
}

// -----

// Written by a fill, a copy, a launch, or by somebody else: all read well. A
// part that was written stands for the whole.
program.kernel @k attributes {op = "copy_rows"} {}
program.entry evaluate batch 1 length 8 {
  %input = program.buffer input offset 0 bytes 64 dtype 0
  %a = program.buffer activation offset 0 bytes 64 dtype 0
  %b = program.buffer activation offset 64 bytes 64 dtype 0
  %c = program.buffer activation offset 128 bytes 64 dtype 0
  %part = program.view %c offset 0 bytes 32
  program.copy %a from %input
  program.launch @k(%a, %b) access [1, 2] constants [1, 16, 16, 16] rows 0 label "copy" {absent = array<i64>, dtypes = array<i64: 0, 0>}
  program.launch @k(%b, %part) access [1, 2] constants [1, 8, 8, 8] rows 0 label "copy" {absent = array<i64>, dtypes = array<i64: 0, 0>}
  program.copy %a from %c
}

// -----

program.entry evaluate batch 1 length 8 {
  %a = program.buffer activation offset 0 bytes 64 dtype 0
  %b = program.buffer activation offset 64 bytes 64 dtype 0
  // expected-error @below {{reads a buffer that nothing has written}}
  program.copy %b from %a
}

// -----

program.entry evaluate batch 1 length 8 {
  // expected-error @below {{has no offset after program}}
  %a = program.buffer activation bytes 64 dtype 0
  program.fill %a
}

// -----

// expected-error @below {{is left after program}}
model.parameter @w : tensor<4xf32> {file = "m.safetensors"}
