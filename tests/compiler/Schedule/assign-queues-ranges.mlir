// SPDX-License-Identifier: MIT

// Who waits for whom follows from bytes, whichever buffers name them.

// RUN: qlora-opt %s --assign-queues | FileCheck %s

// part is a range of what is summed over the ranks: it is read when that is
// done. other is not, and is read beside it.
// CHECK: program.entry accumulate_last
// CHECK: program.all_reduce 0
// CHECK-NEXT: program.record [[#E:]] on 1
// CHECK-NEXT: program.launch @copy_rows(%[[OTHER:.*]], %{{.*}})
// CHECK-NEXT: program.wait [[#E]] on 0
// CHECK-NEXT: program.launch @copy_rows(%[[PART:.*]], %{{.*}})
program.kernel @copy_rows attributes {op = "copy_rows"} {}
program.entry accumulate_last batch 1 length 8 {
  %sum = program.buffer gradient offset 0 bytes 128 dtype 0
  %part = program.buffer gradient offset 64 bytes 64 dtype 0
  %other = program.buffer gradient offset 128 bytes 64 dtype 0
  %a = program.buffer activation bytes 64 dtype 0
  %b = program.buffer activation bytes 64 dtype 0
  program.fill %sum
  program.all_reduce 0 %sum
  program.launch @copy_rows(%other, %b) access [1, 2] constants [1, 16, 16, 16] rows 0 label "beside" {absent = array<i64>, dtypes = array<i64: 0, 0>}
  program.launch @copy_rows(%part, %a) access [1, 2] constants [1, 16, 16, 16] rows 0 label "after" {absent = array<i64>, dtypes = array<i64: 0, 0>}
}

// What is read on another queue is written when it has been read: the sum of
// a copy waits for nothing else.
// CHECK: program.entry accumulate
// CHECK: program.copy
// CHECK-SAME: queue = 2
// CHECK-NEXT: program.record [[#E:]] on 2
// CHECK-NEXT: program.wait [[#E]] on 0
// CHECK-NEXT: program.fill
program.entry accumulate batch 1 length 8 {
  %from = program.buffer gradient offset 0 bytes 64 dtype 0
  %same = program.buffer gradient offset 32 bytes 64 dtype 0
  %to = program.buffer activation bytes 64 dtype 0
  program.copy %to from %from {queue = 2 : i64}
  program.fill %same
}
