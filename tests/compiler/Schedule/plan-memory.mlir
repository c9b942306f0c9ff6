// RUN: qlora-opt %s --plan-memory | FileCheck %s

// %a lives in commands 0 and 1, %b in 1 and 2, %c in 2 and 3: %a and %c share
// memory, so 128 + 64 bytes are enough for 3 buffers.
program.arena activation bytes 0 alignment 64
program.arena workspace bytes 0 alignment 64
// CHECK: program.arena activation bytes 192 alignment 64
// CHECK: program.arena workspace bytes 0
program.entry evaluate batch 1 length 8 {
  %a = program.buffer activation bytes 128 dtype 0
  %b = program.buffer activation bytes 64 dtype 0
  %c = program.buffer activation bytes 128 dtype 0
  %unused = program.buffer activation bytes 999936 dtype 0
  program.fill %a
  program.copy %b from %a
  program.copy %c from %b
  program.fill %c
}
// CHECK: program.buffer activation offset [[#PLACE:]] bytes 128
// CHECK: program.buffer activation offset {{[0-9]+}} bytes 64
// CHECK: program.buffer activation offset [[#PLACE]] bytes 128
// CHECK-NOT: 999936
