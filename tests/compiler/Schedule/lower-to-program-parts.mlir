// SPDX-License-Identifier: MIT

// Lowers the parts of trainable weights that a tensor-parallel rank uses, and
// reductions over ranks.

// RUN: qlora-opt %s --bucket-gradients --lower-to-program | FileCheck %s

// The trainable arena has @b with 64 rows of 8 (each rank uses 32 rows) and @a
// with 8 rows of 64 (each rank uses 32 columns). The range of @a ends 32
// elements early, after its last row; matmuls read it with a row stride of 64.
// The reduction is in place, in every micro-batch; gradients are computed in
// the arena.
// CHECK: program.entry accumulate batch
// CHECK: %[[B:.*]] = program.buffer trainable offset 6144 bytes 1024 pieces 2 : f32 {pieces_of = #program<group tp>, step = 1024 : i64}
// CHECK: program.launch @matmul(%{{.*}} read f32, %[[B]] read f32, %[[Y:.*]] write f32)
// CHECK: %[[A:.*]] = program.buffer trainable offset 4096 bytes 1920 pieces 2 : f32 {pieces_of = #program<group tp>, step = 128 : i64}
// CHECK: program.launch @matmul(%[[Y]] read f32, %[[A]] read f32, %[[Z:.*]] write f32) {{.*}}constants [16, 8, 32, 32, 64, 8,
// CHECK-NEXT: program.collective all_reduce 0 %[[Z]] over tp
// CHECK: %[[DA:.*]] = program.buffer gradient offset 4096 bytes 1920 pieces 2 : f32 {pieces_of = #program<group tp>, step = 128 : i64}
// CHECK: program.launch @matmul(%[[Z]] read f32, %[[Y]] read f32, %[[DA]] read_write f32) {{.*}}constants [8, 32, 16, 8, 32, 64,
// CHECK: %[[DB:.*]] = program.buffer gradient offset 6144 bytes 1024 pieces 2 : f32 {pieces_of = #program<group tp>, step = 1024 : i64}
// CHECK: program.entry accumulate_last batch
// CHECK: program.collective all_reduce 0 %{{.*}} over tp
// All ranks' slices are reduced with the unsharded gradients.
// CHECK: %[[ALL:.*]] = program.buffer gradient offset 6144 bytes 2048 : f32
// CHECK-NEXT: program.collective all_reduce 1 %[[ALL]]{{$}}

model.parameter @b : tensor<64x8xf32> {init = "zero", trainable}
model.parameter @a : tensor<8x64xf32> {init = "kaiming", trainable}
model.parameter @x : tensor<16x8xf32> {file = "m.safetensors"}

train.step accumulate batch 2 length 8 ["ids"] {
^bb0(%ids: tensor<2x8xi32>):
  %table = model.weight @x : tensor<16x8xf32>
  %x = model.embedding %ids, %table : (tensor<2x8xi32>, tensor<16x8xf32>) -> tensor<2x8x8xf32>
  %b = model.weight @b {part = #model.part<2, 0, 0, 64, 64>} : tensor<32x8xf32>
  %y = model.linear %x, %b : (tensor<2x8x8xf32>, tensor<32x8xf32>) -> tensor<2x8x32xf32>
  %a = model.weight @a {part = #model.part<2, 1, 0, 64, 64>} : tensor<8x32xf32>
  %z = model.linear %y, %a : (tensor<2x8x32xf32>, tensor<8x32xf32>) -> tensor<2x8x8xf32>
  %s = model.all_sum %z : tensor<2x8x8xf32>
  %da = train.linear_weight_grad %s, %y {phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<2x8x8xf32>, tensor<2x8x32xf32>) -> tensor<8x32xf32>
  train.accumulate @a, %da {part = #model.part<2, 1, 0, 64, 64>, phase = #model.phase<backward>} : tensor<8x32xf32>
  %dy = model.linear %s, %a layout in_out {phase = #model.phase<backward>} : (tensor<2x8x8xf32>, tensor<8x32xf32>) -> tensor<2x8x32xf32>
  %db = train.linear_weight_grad %dy, %x {phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<2x8x32xf32>, tensor<2x8x8xf32>) -> tensor<32x8xf32>
  train.accumulate @b, %db {part = #model.part<2, 0, 0, 64, 64>, phase = #model.phase<backward>} : tensor<32x8xf32>
}
