// SPDX-License-Identifier: MIT

// Sharded trainable parameters: each rank gets its shard of the sum of every
// gradient, and updates that shard.

// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 targets=["q_proj"]' --fuse-lora --specialize-shapes="batch=2 lengths=32" --shard-trainable="ranks=3 adapters" --build-train-step | FileCheck %s
// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 targets=["q_proj"]' --fuse-lora --specialize-shapes="batch=2 lengths=32 compute-type=bfloat16" --shard-trainable="ranks=3 adapters" --build-train-step --round-adapters --place-frozen-weights --fuse-rows --bucket-gradients --lower-to-program --select-kernels --assign-queues | FileCheck %s --check-prefix=PROGRAM
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 targets=["q_proj"]' --specialize-shapes="batch=2 lengths=32" --shard-trainable="ranks=3 adapters" --build-train-step=pieces=3 2>&1 | FileCheck %s --check-prefix=BOTH

// A and B have 256 elements each: a third is 342 bytes, rounded up to 384. A
// gradient is reduced while the next one is computed. Each rank has only
// shards, so the gradient norm combines the norms of all ranks' shards.
// CHECK: %[[DB:.*]] = train.linear_weight_grad
// CHECK: %[[B:.*]] = train.scatter_gradient @{{.*}}lora_B.weight, %[[DB]] {{.*}} : (tensor<64x4xf32>) -> tensor<96xf32>
// CHECK: %[[DA:.*]] = train.linear_weight_grad
// CHECK: train.accumulate @{{.*}}lora_B.weight, %[[B]] {{.*}}: tensor<96xf32>
// CHECK-NEXT: %[[A:.*]] = train.scatter_gradient @{{.*}}lora_A.weight, %[[DA]]
// CHECK-NEXT: train.accumulate @{{.*}}lora_A.weight, %[[A]]
// CHECK: train.step update
// CHECK-NEXT: %[[OWN:.*]] = train.flat gradient : tensor<1x1024xf32>
// CHECK-NEXT: %[[LENGTH:.*]] = train.length %[[OWN]]
// CHECK-NEXT: %[[LENGTHS:.*]] = model.all_gather %[[LENGTH]] : (tensor<1xf32>) -> tensor<3xf32>
// CHECK-NEXT: %[[WHOLE:.*]] = train.flat gradient {statistics} : tensor<1x1024xf32>
// CHECK-NEXT: train.clip_norm %[[WHOLE]], %[[LENGTHS]]
// CHECK: %[[P:.*]] = train.flat trainable : tensor<1x1024xf32>

// The arenas hold shards, whose boundaries may lie inside tensors. Shards are
// sent in 16 bits.
// PROGRAM-DAG: program.parameter "base_model.model.l.0.q_proj.lora_B.weight" trainable offset 4096 bytes 1024 [64, 4] {{.*}}piece 384 {
// PROGRAM-DAG: program.parameter "base_model.model.l.0.q_proj.lora_A.weight.exp_avg_sq" state offset 4480 bytes 1024 [4, 64] {{.*}}piece 384 {
// PROGRAM-DAG: program.arena trainable bytes 8192
// PROGRAM-DAG: program.arena state bytes 8192
// PROGRAM-DAG: program.arena rounded bytes 4096
// PROGRAM: program.entry accumulate batch
// PROGRAM: %[[PIECE:.*]] = program.buffer rounded offset 2240 bytes 192 : u8
// PROGRAM: program.collective all_gather 0 %{{.*}} from %[[PIECE]] over fsdp
// PROGRAM: program.collective reduce_scatter
// PROGRAM-NOT: all_reduce
// PROGRAM: program.entry accumulate_last
// PROGRAM: program.collective all_reduce 0 %{{.*}}{{$}}
// PROGRAM: program.collective all_reduce 0 %{{.*}} over replicas
// PROGRAM: program.entry update
// PROGRAM: program.launch @length.cpu
// PROGRAM: program.collective all_gather 0 {{.*}} over fsdp
// PROGRAM: program.launch @clip_norm.cpu
// PROGRAM: program.launch @{{.*}}round

// BOTH: error: --parallel: zero1 conflicts with zero2, and with fsdp of trainable weights: they shard updates too; remove zero1
