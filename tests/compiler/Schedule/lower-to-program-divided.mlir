// SPDX-License-Identifier: MIT

// Gradients of sharded trainable parameters are reduce-scattered in every
// micro-batch.

// RUN: qlora-opt %s --bucket-gradients --lower-to-program | FileCheck %s

// A third of 16,384 bytes, rounded up to a multiple of 64, is 5,504. Three such
// shards have 128 bytes more than the tensor. So the gradient is computed in a
// buffer of that size, and its last 128 bytes are filled with zeros. A gradient
// computed elsewhere is first copied into such a buffer. A gradient whose size
// three ranks divide evenly has no padding.
// CHECK-DAG: program.parameter "w" trainable offset 4096 bytes 16384 [64, 64] {{.*}}piece 5504
// CHECK-DAG: program.parameter "first" trainable offset {{[0-9]+}} bytes 6144 [24, 64] {{.*}}piece 4096 {
// CHECK-DAG: program.parameter "second" trainable offset {{[0-9]+}} bytes 6144 [24, 64] {{.*}}piece 4096 first 6144
// CHECK-DAG: program.parameter "second.exp_avg" state offset {{[0-9]+}} bytes 6144 [24, 64] {{.*}}piece 4096 first 6144
// CHECK: program.entry accumulate batch
// CHECK: %[[DW:.*]] = program.buffer activation bytes 16512 : f32
// CHECK: program.launch @embedding_grad(
// CHECK: %[[END:.*]] = program.view %[[DW]] offset 16384 bytes 128
// CHECK-NEXT: program.fill %[[END]]
// CHECK: %[[PIECE:.*]] = program.buffer activation bytes 5504 : f32
// CHECK-NEXT: program.collective reduce_scatter 1 %[[PIECE]] from %[[DW]] over fsdp
// CHECK: %[[SUM:.*]] = program.buffer gradient offset 4096 bytes 5504 : f32
// CHECK-NEXT: program.launch @accumulate(%[[PIECE]] read f32, %[[SUM]] read_write f32)
// CHECK: program.collective reduce_scatter 2 %{{.*}} from %[[DV:.*]] over fsdp
// CHECK-NOT: all_reduce
// CHECK: program.entry accumulate_last

module attributes {model.mesh = #model.mesh<zero2 = 3>} {
model.parameter @w : tensor<64x64xf32> {file = "m.safetensors", trainable, piece = 5504}
model.parameter @v : tensor<48x64xf32> {init = "zero", trainable, piece = 4096, part_names = ["first", "second"], part_rows = array<i64: 24, 24>}

train.step accumulate batch 1 length 8 ["ids"] {
^bb0(%ids: tensor<1x8xi32>):
  %w = model.gather_weight @w : tensor<64x64xf32>
  %x = model.embedding %ids, %w : (tensor<1x8xi32>, tensor<64x64xf32>) -> tensor<1x8x64xf32>
  %dw = train.embedding_grad %ids, %x {phase = #model.phase<backward>} : (tensor<1x8xi32>, tensor<1x8x64xf32>) -> tensor<64x64xf32>
  %pw = train.scatter_gradient @w, %dw {phase = #model.phase<backward>} : (tensor<64x64xf32>) -> tensor<1376xf32>
  train.accumulate @w, %pw {phase = #model.phase<backward>} : tensor<1376xf32>
  %dv = train.embedding_grad %ids, %x {phase = #model.phase<backward>} : (tensor<1x8xi32>, tensor<1x8x64xf32>) -> tensor<48x64xf32>
  %pv = train.scatter_gradient @v, %dv {phase = #model.phase<backward>} : (tensor<48x64xf32>) -> tensor<1024xf32>
  train.accumulate @v, %pv {phase = #model.phase<backward>} : tensor<1024xf32>
}
}
