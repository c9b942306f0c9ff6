// SPDX-License-Identifier: MIT

// Invariants after the phase `program`; verify-phase-invalid.mlir tests the
// earlier phases.

// RUN: qlora-opt %s --split-input-file --verify-diagnostics --verify-phase="phase=program"

// Bytes must be written before they are read.
program.kernel @k attributes {op = "copy_rows"} {}
program.entry evaluate batch 1 length 8 {
  %a = program.buffer activation offset 0 bytes 64 : f32
  %b = program.buffer activation offset 64 bytes 64 : f32
  // expected-error @below {{operand 0 in the activation arena: reads bytes 0+64, but byte 0 was not written before}}
  program.launch @k(%a read f32, %b write f32) constants [1, 16, 16, 16] rows 0 label "copy"
}

// -----

// Memory may be written by a fill, a copy, a launch or the runtime, completely
// or in ranges, and by two buffers alternately: all reads get written bytes.
program.kernel @k attributes {op = "copy_rows"} {}
program.entry evaluate batch 1 length 16 {
  %input = program.buffer input offset 0 bytes 64 : f32
  program.bind ids %input
  %a = program.buffer activation offset 0 bytes 64 : f32
  %b = program.buffer activation offset 64 bytes 64 : f32
  %c = program.buffer activation offset 0 bytes 64 : f32
  %low = program.view %c offset 0 bytes 32
  %high = program.view %c offset 32 bytes 32
  program.copy %a from %input
  program.launch @k(%a read f32, %b write f32) constants [1, 16, 16, 16] rows 0 label "copy"
  program.launch @k(%b read f32, %high write f32) constants [1, 8, 8, 8] rows 0 label "copy"
  program.fill %low
  program.copy %b from %c
}

// -----

program.entry evaluate batch 1 length 8 {
  %a = program.buffer activation offset 0 bytes 64 : f32
  %b = program.buffer activation offset 64 bytes 64 : f32
  // expected-error @below {{operand 1 in the activation arena: reads bytes 0+64, but byte 0 was not written before}}
  program.copy %b from %a
}

// -----

// Writing a range does not write the whole buffer.
program.entry evaluate batch 1 length 8 {
  %a = program.buffer activation offset 0 bytes 64 : f32
  %b = program.buffer activation offset 64 bytes 64 : f32
  %low = program.view %a offset 0 bytes 32
  program.fill %low
  // expected-error @below {{operand 1 in the activation arena: reads bytes 0+64, but byte 32 was not written before}}
  program.copy %b from %a
}

// -----

// Reading an input that the runtime does not write is an error too.
program.entry evaluate batch 1 length 8 {
  %input = program.buffer input offset 64 bytes 32 : i8
  %a = program.buffer activation offset 0 bytes 32 : i8
  // expected-error @below {{operand 1 in the input arena: reads bytes 64+32, but byte 64 was not written before}}
  program.copy %a from %input
}

// -----

// A result that the runtime reads must be written at the end.
// expected-error @below {{result in the result arena: reads bytes 0+4, but byte 0 was not written before}}
program.entry evaluate batch 1 length 8 {
  %loss = program.buffer result offset 0 bytes 4 : f32
  program.bind loss_sum %loss
}

// -----

// Buffers that live at the same time must not share bytes.
program.entry evaluate batch 1 length 8 {
  %a = program.buffer activation offset 0 bytes 64 : f32
  // expected-note @below {{the other buffer}}
  %b = program.buffer activation offset 32 bytes 64 : f32
  %c = program.buffer activation offset 128 bytes 64 : f32
  program.fill %a
  program.fill %b
  // expected-error @below {{operand 1 in the activation arena: reads bytes 0+64, but another buffer was written to byte 32 since}}
  program.copy %c from %a
}

// -----

// Two queues must not access the same bytes at the same time.
program.entry accumulate_last batch 1 length 8 {
  %sum = program.buffer gradient offset 0 bytes 128 : f32
  %part = program.buffer gradient offset 64 bytes 64 : f32
  program.collective all_reduce 0 %sum
  // expected-error @below {{operand 0 in the gradient arena: race: writes bytes 64+64 while the communication queue writes 0+128, with no event between them}}
  program.fill %part
}

// -----

// Events order the two queues.
program.entry accumulate_last batch 1 length 8 {
  %sum = program.buffer gradient offset 0 bytes 128 : f32
  program.collective all_reduce 0 %sum
  program.record 0 on communication
  program.wait 0 on compute
  program.fill %sum
}

// -----

program.entry accumulate_last batch 1 length 8 {
  // expected-error @below {{event 0 is waited for before it is recorded}}
  program.wait 0 on compute
}

// -----

program.entry accumulate_last batch 1 length 8 {
  program.record 0 on compute
  // expected-error @below {{event 0 is recorded twice}}
  program.record 0 on communication
}

// -----

program.entry evaluate batch 1 length 8 {
  // expected-error @below {{has no offset after program}}
  %a = program.buffer activation bytes 64 : f32
  program.fill %a
}

// -----

// expected-error @below {{is left after program}}
model.parameter @w : tensor<4xf32> {file = "m.safetensors"}
