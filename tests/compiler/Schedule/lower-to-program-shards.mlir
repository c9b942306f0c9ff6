// SPDX-License-Identifier: MIT

// Shards of the base are gathered in every micro-batch; gradients are reduced
// in the last micro-batch.

// RUN: qlora-opt %s --place-frozen-weights=shards=3 --bucket-gradients --lower-to-program | FileCheck %s
// RUN: qlora-opt %s --place-frozen-weights=shards=3 --bucket-gradients --lower-to-program --select-kernels --assign-queues | FileCheck %s --check-prefix=QUEUES

// CHECK-DAG: program.parameter "w" frozen offset 0 bytes 16384 [64, 64] {{.*}}piece 5504
// CHECK-DAG: program.parameter "v" frozen offset 5504 bytes 16384 [64, 64] {{.*}}piece 5504
// CHECK-DAG: program.arena frozen bytes 11008

// CHECK: program.entry accumulate batch
// CHECK: program.collective all_gather 0
// CHECK: program.collective all_gather 1
// CHECK-NOT: all_reduce
// CHECK: program.entry accumulate_last
// CHECK: %[[PIECE:.*]] = program.buffer frozen offset 0 bytes 5504 : u8
// CHECK-NEXT: %[[W:.*]] = program.buffer activation bytes 16512 : u8
// CHECK-NEXT: program.collective all_gather 0 %[[W]] from %[[PIECE]] over fsdp
// CHECK: %[[WHOLE:.*]] = program.view %[[W]] offset 0 bytes 16384
// CHECK: program.launch @matmul(%{{.*}}, %[[WHOLE]] read f32
// CHECK: program.collective all_gather 1
// CHECK: program.collective all_reduce 0

// A gather starts after the last use of its memory, and its reader waits.
// QUEUES: program.entry accumulate_last
// QUEUES: program.collective all_gather 0
// QUEUES: program.record 1 on communication
// QUEUES-NEXT: program.wait 1 on compute
// QUEUES: program.launch @matmul

model.parameter @w : tensor<64x64xf32> {file = "m.safetensors"}
model.parameter @v : tensor<64x64xf32> {file = "m.safetensors"}
model.parameter @a : tensor<64x64xf32> {init = "zero", trainable}

train.step accumulate batch 1 length 8 ["ids"] {
^bb0(%ids: tensor<1x8xi32>):
  %a = model.weight @a : tensor<64x64xf32>
  %w = model.weight @w : tensor<64x64xf32>
  %v = model.weight @v : tensor<64x64xf32>
  %x = model.embedding %ids, %a : (tensor<1x8xi32>, tensor<64x64xf32>) -> tensor<1x8x64xf32>
  %y = model.linear %x, %w {layer = 0 : i64} : (tensor<1x8x64xf32>, tensor<64x64xf32>) -> tensor<1x8x64xf32>
  %z = model.linear %y, %v {layer = 1 : i64} : (tensor<1x8x64xf32>, tensor<64x64xf32>) -> tensor<1x8x64xf32>
  %da = train.embedding_grad %ids, %z {phase = #model.phase<backward>} : (tensor<1x8xi32>, tensor<1x8x64xf32>) -> tensor<64x64xf32>
  train.accumulate @a, %da {phase = #model.phase<backward>} : tensor<64x64xf32>
}
