// SPDX-License-Identifier: MIT

// A command waits for another command if they access overlapping bytes, even
// through buffers with different names.

// RUN: qlora-opt %s --assign-queues | FileCheck %s

// `part` is a range of the all-reduce's operand, so its reader waits for the
// all-reduce. `other` does not overlap, and is read concurrently.
// CHECK: program.entry accumulate_last
// CHECK: program.collective all_reduce 0
// CHECK-NEXT: program.record [[#E:]] on communication
// CHECK-NEXT: program.launch @copy_rows(%[[OTHER:.*]] {{[a-z_]+ [a-z0-9]+}}, %{{.*}})
// CHECK-NEXT: program.wait [[#E]] on compute
// CHECK-NEXT: program.launch @copy_rows(%[[PART:.*]] {{[a-z_]+ [a-z0-9]+}}, %{{.*}})
program.kernel @copy_rows attributes {op = "copy_rows"} {}
program.entry accumulate_last batch 1 length 8 {
  %sum = program.buffer gradient offset 0 bytes 128 : f32
  %part = program.buffer gradient offset 64 bytes 64 : f32
  %other = program.buffer gradient offset 128 bytes 64 : f32
  %a = program.buffer activation bytes 64 : f32
  %b = program.buffer activation bytes 64 : f32
  program.fill %sum
  program.collective all_reduce 0 %sum
  program.launch @copy_rows(%other read f32, %b write f32) constants [1, 16, 16, 16] rows 0 label "beside"
  program.launch @copy_rows(%part read f32, %a write f32) constants [1, 16, 16, 16] rows 0 label "after"
}

// The fill waits for the copy on another queue that reads the same bytes.
// CHECK: program.entry accumulate
// CHECK: program.copy
// CHECK-SAME: on copy
// CHECK-NEXT: program.record [[#E:]] on copy
// CHECK-NEXT: program.wait [[#E]] on compute
// CHECK-NEXT: program.fill
program.entry accumulate batch 1 length 8 {
  %from = program.buffer gradient offset 0 bytes 64 : f32
  %same = program.buffer gradient offset 32 bytes 64 : f32
  %to = program.buffer activation bytes 64 : f32
  program.copy %to from %from on copy
  program.fill %same
}
