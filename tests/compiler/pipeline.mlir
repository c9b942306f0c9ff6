// SPDX-License-Identifier: MIT

// The order of the passes; a change of the order must change this test. The
// passes inside train.step( ) run on all steps in parallel. Pipeline.cpp gives
// the reasons for the order.

// RUN: qlora-opt %S/Inputs/layer.mlir --phase-adapt --phase-step --phase-optimize --phase-program --dump-pass-pipeline -o /dev/null 2>&1 | tr ',{' '\n' > %t.pipeline
// RUN: FileCheck %s --input-file=%t.pipeline

// Every pass of the phases' folders is in the pipeline.
// RUN: grep -oh 'Pass<"[a-z-]*"' %source/compiler/*/*Passes.td | tr -d '<"' | sed s/^Pass// | sort > %t.defined
// RUN: sed -n 's/^ *\([a-z-]*\).*/\1/p' %t.pipeline | sort -u > %t.used
// RUN: comm -23 %t.defined %t.used | FileCheck %s --check-prefix=LEFT --allow-empty
// LEFT-NOT: {{.}}

// CHECK: Pass Manager with 39 passes:
// CHECK: {{^ +}}quantize-base
// CHECK: {{^ +}}round-activations
// CHECK: {{^ +}}attach-loss
// CHECK: {{^ +}}add-noise
// CHECK: {{^ +}}attach-adapters
// CHECK: {{^ +}}attach-expert-adapters
// CHECK: {{^ +}}attach-tokens
// CHECK: {{^ +}}mark-trainable
// CHECK: {{^ +}}fuse-lora
// CHECK: {{^ +}}specialize-shapes
// CHECK: {{^ +}}build-generation
// CHECK: {{^ +}}stack-adapters
// CHECK: {{^ +}}shard-matmuls
// CHECK: {{^ +}}shard-context
// CHECK: {{^ +}}shard-experts
// CHECK: {{^ +}}shard-sequence
// CHECK: {{^ +}}shard-trainable
// CHECK: {{^ +}}partition-pipeline
// CHECK: {{^ +}}build-train-step
// CHECK: {{^ +}}train.step(
// CHECK: {{^ +}}fuse-accumulate
// CHECK: {{^ +}}round-adapters
// CHECK: {{^ +}}train.step(
// CHECK: {{^ +}}encode-activations
// CHECK: {{^ +}}offload-activations
// CHECK: {{^ +}}rematerialize
// CHECK: {{^ +}}plan-dequant
// CHECK: {{^ +}}train.step(
// CHECK: {{^ +}}concat-siblings
// CHECK: {{^ +}}reorder-accumulation
// CHECK: {{^ +}}shard-vocabulary
// CHECK: {{^ +}}place-frozen-weights
// CHECK: {{^ +}}train.step(
// CHECK: {{^ +}}fuse-rows
// CHECK: {{^ +}}schedule-gathers
// CHECK: {{^ +}}unroll-micro-batches
// CHECK: {{^ +}}bucket-gradients
// CHECK: {{^ +}}compress-gradients
// CHECK: {{^ +}}train.step(
// CHECK: {{^ +}}fuse-rows
// CHECK: {{^ +}}lower-to-program
// CHECK: {{^ +}}select-kernels
// CHECK: {{^ +}}assign-queues
// CHECK: {{^ +}}plan-memory
