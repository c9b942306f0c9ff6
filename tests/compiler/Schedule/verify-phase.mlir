// RUN: qlora-opt %s --split-input-file --verify-diagnostics --verify-phase="phase=program"

program.kernel @k attributes {op = "copy_rows"} {}
program.entry evaluate batch 1 length 8 {
  %a = program.buffer activation offset 0 bytes 64 dtype 0
  %b = program.buffer activation offset 64 bytes 64 dtype 0
  // expected-error @below {{reads a buffer that nothing has written}}
  program.launch @k(%a, %b) access [1, 2] constants [1, 16, 16, 16] rows 0 label "copy" {absent = array<i64>, dtypes = array<i64: 0, 0>}
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
