// SPDX-License-Identifier: MIT

// Buffers get offsets. Each arena is as large as the largest entry needs.

// RUN: qlora-opt %s --split-input-file --plan-memory | FileCheck %s
// RUN: qlora-opt %s --split-input-file --plan-memory --print-plan -o /dev/null | FileCheck %s --check-prefix=PLAN

// %a lives in commands 0 and 1, %b in 1 and 2, %c in 2 and 3: %a and %c share
// memory, so 128 + 64 bytes are enough for 3 buffers.
module {
program.arena activation bytes 0 alignment 64
program.arena workspace bytes 0 alignment 64
// CHECK: program.arena activation bytes 192 alignment 64
// CHECK: program.arena workspace bytes 0
program.entry evaluate batch 1 length 8 {
  %a = program.buffer activation bytes 128 : f32
  %b = program.buffer activation bytes 64 : f32
  %c = program.buffer activation bytes 128 : f32
  %unused = program.buffer activation bytes 999936 : f32
  program.fill %a
  program.copy %b from %a
  program.copy %c from %b
  program.fill %c
}
// CHECK: program.buffer activation offset [[#PLACE:]] bytes 128
// CHECK: program.buffer activation offset {{[0-9]+}} bytes 64
// CHECK: program.buffer activation offset [[#PLACE]] bytes 128
// CHECK-NOT: 999936
}

// -----

// The saved arena (host memory) is also packed by lifetime: %h1 and %h2 share
// memory, because %h1 is read before %h2 is written.
module {
// CHECK: program.arena saved bytes 128 alignment 64
program.arena saved bytes 0 alignment 64
program.arena activation bytes 0 alignment 64
program.entry evaluate batch 1 length 8 {
  // CHECK: program.buffer saved offset 0 bytes 128
  // CHECK: program.buffer saved offset 0 bytes 64
  %a = program.buffer activation bytes 128 : f32
  %h1 = program.buffer saved bytes 128 : f32
  %h2 = program.buffer saved bytes 64 : f32
  %v = program.view %a offset 0 bytes 64
  program.fill %a
  program.copy %h1 from %a
  program.copy %a from %h1
  program.copy %h2 from %v
  program.copy %v from %h2
}
}

// -----

// Offsets are multiples of 64: the first 100 bytes take 128, so 136 bytes are
// needed. A view keeps its buffer alive. Workspace has a separate arena.
module {
// CHECK: program.arena frozen bytes 4096 alignment 64
program.arena frozen bytes 4096 alignment 64
// CHECK: program.arena activation bytes 136 alignment 64
program.arena activation bytes 0 alignment 64
// CHECK: program.arena workspace bytes 512 alignment 64
program.arena workspace bytes 0 alignment 64
program.entry evaluate batch 1 length 8 {
  // CHECK: program.buffer activation offset 0 bytes 100
  %a = program.buffer activation bytes 100 : f32
  %v = program.view %a offset 92 bytes 8
  // CHECK: program.buffer activation offset 128 bytes 8
  %b = program.buffer activation bytes 8 : f32
  // CHECK: program.buffer workspace offset 0 bytes 512
  %w = program.buffer workspace bytes 512 : u8
  // CHECK: program.buffer frozen offset 1024 bytes 8
  %f = program.buffer frozen offset 1024 bytes 8 : f32
  program.fill %a
  program.copy %b from %f
  program.fill %w
  program.copy %v from %b
}
}

// -----

// On CUDA, workspaces start at multiples of 256, the alignment of their arena.
// So a workspace of 320 bytes takes 512 bytes if another workspace follows.
// Activations have an alignment of 64.
module {
program.arena activation bytes 0 alignment 64
// CHECK: program.arena workspace bytes 832 alignment 256
program.arena workspace bytes 0 alignment 256
program.entry evaluate batch 1 length 8 {
  // CHECK: program.buffer workspace offset 0 bytes 320
  %a = program.buffer workspace bytes 320 : u8
  // CHECK: program.buffer workspace offset 512 bytes 320
  %b = program.buffer workspace bytes 320 : u8
  // CHECK: program.buffer activation offset 0 bytes 100
  %c = program.buffer activation bytes 100 : f32
  // CHECK: program.buffer activation offset 128 bytes 8
  %d = program.buffer activation bytes 8 : f32
  program.copy %a from %b
  program.copy %c from %d
}
}

// -----

// Entries do not run concurrently, so the arena has the size of the larger one.
// The report has every arena, and for each entry the saved bytes and its
// largest buffers.
// PLAN: {"arenas":{"activation":256,"workspace":0},"entries":
// PLAN-SAME: {"activation_bytes":256,"activation_live_bytes":256,"batch":1,"kind":"accumulate","largest":[{"bytes":192,"of":"hidden","saved":false},{"bytes":64,"of":"attention","saved":true}],"length":8,"peak":{"forward":192,"saved":64},"saved_bytes":64,"workspace_bytes":0}
// PLAN-SAME: {"activation_bytes":128,{{.*}}"kind":"evaluate"
// PLAN-SAME: "host_bytes":0,"total_bytes":256}
module {
program.arena activation bytes 0 alignment 64
program.arena workspace bytes 0 alignment 64
program.entry accumulate batch 1 length 8 {
  %a = program.buffer activation bytes 64 : f32 {label = "attention", saved}
  %b = program.buffer activation bytes 192 : f32 {label = "hidden"}
  program.fill %a
  program.fill %b
  program.fill %a
}
program.entry evaluate batch 1 length 8 {
  %a = program.buffer activation bytes 128 : f32
  program.fill %a
}
}

// -----

// Event 0 comes after the last use of %a, and the copy queue waits for it
// before it writes %n. So %n may share memory with %a. The compute queue may
// still write %b at the same time, so %n may not share memory with %b.
module {
program.arena activation bytes 0 alignment 64
program.arena workspace bytes 0 alignment 64
// CHECK: program.arena activation bytes 192 alignment 64
program.entry evaluate batch 1 length 8 {
  // CHECK: program.buffer activation offset [[#N:]] bytes 128 : f32 {label = "a"}
  %a = program.buffer activation bytes 128 : f32 {label = "a"}
  // CHECK: program.buffer activation offset [[#B:]] bytes 64 : f32 {label = "b"}
  %b = program.buffer activation bytes 64 : f32 {label = "b"}
  // CHECK: program.buffer activation offset [[#N]] bytes 128 : f32 {label = "n"}
  %n = program.buffer activation bytes 128 : f32 {label = "n"}
  program.fill %a
  program.record 0 on compute
  program.fill %b
  program.wait 0 on copy
  program.fill %n on copy
  program.record 1 on copy
  program.wait 1 on compute
  program.fill %n
}
}

// -----

// Without events, %n may be written at any time, so it cannot share memory with
// %a or %b. These two still share memory.
module {
program.arena activation bytes 0 alignment 64
program.arena workspace bytes 0 alignment 64
// CHECK: program.arena activation bytes 256 alignment 64
program.entry evaluate batch 1 length 8 {
  %a = program.buffer activation bytes 128 : f32
  %b = program.buffer activation bytes 64 : f32
  %n = program.buffer activation bytes 128 : f32
  program.fill %a
  program.fill %b
  program.fill %n on copy
}
}
