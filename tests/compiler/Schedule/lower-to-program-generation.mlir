// SPDX-License-Identifier: MIT

// The steps of a generation, from the functions of build-generation. Their
// caches are in an arena that both entries use.

// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4' --fuse-lora --specialize-shapes="batch=2 lengths=32 generation=3,8" --build-generation="entries=16" --build-train-step --fuse-accumulate --fuse-rows --bucket-gradients -o %t.mlir
// RUN: FileCheck %s --check-prefix=STEP --input-file=%t.mlir
// RUN: qlora-opt %t.mlir --lower-to-program | FileCheck %s

// STEP: train.step prefill batch 1 length 8 ["ids", "targets", "positions", "segments", "slots", "last"]
// STEP-NEXT: ^bb0(%{{.*}}: tensor<1x8xi32>, %{{.*}}: tensor<1x8xi32>, %[[POSITIONS:.*]]: tensor<1x8xi32>, %[[SEGMENTS:.*]]: tensor<1x8xi32>, %[[SLOTS:.*]]: tensor<1x8xi32>, %[[LAST:.*]]: tensor<1xi32>):
// STEP-NOT: phase =
// STEP: %[[K:.*]] = model.cache_rows @attention.0.keys, %{{.*}}, %[[SLOTS]], %[[POSITIONS]], %[[SEGMENTS]]
// STEP: %[[V:.*]] = model.cache_rows @attention.0.values, %{{.*}}, %[[SLOTS]], %[[POSITIONS]], %[[SEGMENTS]]
// STEP: model.cached_attention %{{.*}}, %[[K]], %[[V]], %[[SLOTS]], %[[POSITIONS]], %[[SEGMENTS]]
// STEP: model.pick_tokens %{{.*}}, %[[LAST]]
// STEP: train.result "logits", %{{.*}} : tensor<1x1x128xf32>
// STEP-NEXT: }
// STEP: train.step decode batch 3 length 1
// STEP-NOT: phase =
// STEP: train.result "logits", %{{.*}} : tensor<3x1x128xf32>
// STEP-NEXT: }
// STEP: train.step update

// Keys and values of 3 slots, 16 entries and 32 columns in f32.
// CHECK: program.arena cache bytes 12288
// CHECK: program.entry prefill batch 1 length 8
// CHECK: %[[KEYS:.*]] = program.buffer cache offset [[#K:]] bytes 6144
// CHECK: program.launch @cache_rows({{.*}}, %[[KEYS]] write f32)
// CHECK: %[[VALUES:.*]] = program.buffer cache offset [[#V:]] bytes 6144
// CHECK: program.launch @cache_rows({{.*}}, %[[VALUES]] write f32)
// CHECK: program.launch @cached_attention(%{{.*}} read f32, %[[KEYS]] read f32, %[[VALUES]] read f32,
// CHECK: program.entry decode batch 3 length 1
// CHECK: program.buffer cache offset [[#K]] bytes 6144
// CHECK: program.launch @cache_rows(
// CHECK: program.buffer cache offset [[#V]] bytes 6144
// CHECK: program.launch @cache_rows(
// CHECK: program.launch @cached_attention(
// CHECK: program.entry update

// A program that only generates has no gradients and states. Each token has the
// index of its adapter.

// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 alpha=4' --fuse-lora --specialize-shapes="generation=3,8" --build-generation="entries=16" --stack-adapters="adapters=2" --build-train-step --fuse-rows --bucket-gradients --lower-to-program | FileCheck %s --check-prefix=ONLY

// ONLY-NOT: program.arena gradient
// ONLY-NOT: program.arena state
// ONLY: program.arena trainable
// ONLY: program.entry prefill batch 1 length 8
// ONLY: program.bind adapters
// ONLY: program.launch @adapter_matmul({{.*}} read i32, %{{.*}} write f32) constants [8, 12, 64, 2,
// ONLY: program.launch @adapter_matmul({{.*}} read i32, %{{.*}} read_write f32) constants [8, 64, 4, 2,
// ONLY: program.entry decode batch 3 length 1
// ONLY-NOT: program.entry
