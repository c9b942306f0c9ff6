// SPDX-License-Identifier: MIT

// Sharded updates (ZeRO-1): all trainable parameters are one tensor with rows
// of 1024 elements. Each rank updates its rows and gathers the other rows.

// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 targets=["q_proj"]' --fuse-lora --specialize-shapes="batch=2 lengths=32" --build-train-step=pieces=3 | FileCheck %s
// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 targets=["q_proj"]' --fuse-lora --specialize-shapes="batch=2 lengths=32 compute-type=bfloat16" --build-train-step=pieces=3 --round-adapters --fuse-rows --bucket-gradients --lower-to-program --select-kernels --assign-queues | FileCheck %s --check-prefix=PROGRAM
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 targets=["q_proj"]' --mark-trainable='optimizer=muon' --specialize-shapes="batch=2 lengths=32" --build-train-step=pieces=3 2>&1 | FileCheck %s --check-prefix=WHOLE

// 512 elements need one row of 1024, padded to three rows, one for each rank.
// The gradient has a fourth row, the statistics; clip_norm reads all rows.
// CHECK: model.mesh = #model.mesh<zero1 = 3>
// CHECK: train.step update
// CHECK: %[[ALL:.*]] = train.flat gradient {statistics} : tensor<4x1024xf32>
// CHECK: train.clip_norm %[[ALL]]
// CHECK: %[[P:.*]] = train.flat trainable {pieces = 3 : i64} : tensor<1x1024xf32>
// CHECK: %[[M:.*]] = train.flat state : tensor<1x1024xf32>
// CHECK: %[[G:.*]] = train.flat gradient {pieces = 3 : i64} : tensor<1x1024xf32>
// CHECK: %[[NEW:.*]], %{{.*}}:2 = train.adamw %[[P]], %[[M]], %{{.*}}, %[[G]],
// CHECK: train.store_flat trainable, %[[NEW]] {pieces = 3 : i64}
// CHECK: train.gather_flat trainable {pieces = 3 : i64, row = 0 : i64} : tensor<3x1024xf32>

// Each rank has a third of the states, with boundaries inside tensors, but the
// complete rounded copy of the parameters.
// PROGRAM-DAG: program.parameter "base_model.model.l.0.q_proj.lora_A.weight.exp_avg" state offset 0 bytes 1024 [4, 64] {{.*}}piece 4096 first 1024
// PROGRAM-DAG: program.parameter "base_model.model.l.0.q_proj.lora_B.weight.exp_avg_sq" state offset 4096 bytes 1024 [64, 4] {{.*}}piece 4096 {
// PROGRAM-DAG: program.arena state bytes 8192
// PROGRAM-DAG: program.arena trainable bytes 16384
// PROGRAM: program.entry update
// PROGRAM: %[[P:.*]] = program.buffer trainable offset 4096 bytes 4096 pieces 3 : f32
// PROGRAM: program.launch @{{.*}}adamw{{.*}}%[[P]] write f32
// PROGRAM: program.record [[MADE:[0-9]+]] on compute
// PROGRAM: program.wait [[MADE]] on communication
// PROGRAM: program.collective all_gather 0 %[[ALL:.*]] from %{{.*}} over fsdp
// PROGRAM: program.wait {{.*}} on compute
// PROGRAM: program.launch @{{.*}}round{{.*}}(%[[ALL]] read f32

// WHOLE: --parallel zero1 cannot shard updates of 'muon'; use --optim adamw_torch or lion
