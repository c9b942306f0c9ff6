// SPDX-License-Identifier: MIT

// Copies to the host and back, and the commands that wait for them.

// RUN: qlora-opt %s --assign-queues=target=cuda | FileCheck %s

// After the second copy the compute queue waits for the first copy, and then
// the memory of %a is free. A copy back waits for earlier commands. When it is
// issued, the compute queue waits for all copies to the host. The first reader
// waits for the copy back.
// CHECK: program.fill %[[A:.*]]
// CHECK-NEXT: program.record 0 on compute
// CHECK-NEXT: program.wait 0 on communication
// CHECK-NEXT: program.copy %[[HA:.*]] from %[[A]] on communication behind 0
// CHECK-NEXT: program.record 1 on communication
// CHECK-NEXT: program.fill %[[B:.*]]
// CHECK-NEXT: program.record 2 on compute
// CHECK-NEXT: program.wait 2 on communication
// CHECK-NEXT: program.copy %[[HB:.*]] from %[[B]] on communication behind 0
// CHECK-NEXT: program.record 3 on communication
// CHECK-NEXT: program.wait 1 on compute
// CHECK-NEXT: program.fill %[[C:.*]]
// CHECK-NEXT: program.record 4 on compute
// CHECK-NEXT: program.wait 4 on communication
// CHECK-NEXT: program.copy %[[BACK:.*]] from %[[HA]] on communication behind 0
// CHECK-NEXT: program.record 5 on communication
// CHECK-NEXT: program.wait 3 on compute
// CHECK-NEXT: program.fill %[[C]]
// CHECK-NEXT: program.wait 5 on compute
// CHECK-NEXT: program.copy %[[C]] from %[[BACK]]
program.arena saved bytes 0 alignment 64
program.arena activation bytes 0 alignment 64
program.entry evaluate batch 1 length 8 {
  %a = program.buffer activation bytes 64 : f32
  %b = program.buffer activation bytes 64 : f32
  %c = program.buffer activation bytes 64 : f32
  %back = program.buffer activation bytes 64 : f32
  %ha = program.buffer saved bytes 64 : f32
  %hb = program.buffer saved bytes 64 : f32
  program.fill %a
  program.copy %ha from %a on communication behind 0
  program.fill %b
  program.copy %hb from %b on communication behind 0
  program.fill %c
  program.copy %back from %ha on communication behind 0
  program.fill %c
  program.copy %c from %back
}
