// RUN: qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=32" --quantize-base --attach-adapters='r=4' --fuse-lora --build-train-step --fuse-accumulate --fuse-rows --bucket-gradients --lower-to-program | FileCheck %s

// Parts of a group keep their names and get rows of the group.
// CHECK: program.parameter "base_model.model.l.0.q_proj.lora_A.weight" trainable offset [[#A:]] bytes 1024 [4, 64]
// CHECK: program.parameter "base_model.model.l.0.k_proj.lora_A.weight" trainable offset [[#A+1024]] bytes 1024 [4, 64]
// An accumulate entry has no collectives; accumulate_last has.
// CHECK: program.entry accumulate batch 2 length 32
// CHECK-NOT: program.collective
// CHECK: program.entry accumulate_last batch 2 length 32
// The GEMM of B adds to the result of the base GEMM (read and written).
// CHECK: program.launch @panel_matmul(%{{.*}} read {{[a-z0-9]+}}, %{{.*}} read {{[a-z0-9]+}}, %[[Q:.*]] write {{[a-z0-9]+}})
// CHECK: program.launch @matmul(%{{.*}} read {{[a-z0-9]+}}, %{{.*}} read {{[a-z0-9]+}}, %[[Q]] read_write {{[a-z0-9]+}})
// The dA and dB GEMMs write into the gradient arena: beta = 1.0 (the bits of
// which are 4607182418800017408) and no accumulate kernel for them.
// CHECK: %[[SLOT:.*]] = program.buffer gradient offset 4096 bytes 1024
// CHECK: program.launch @matmul(%{{.*}} read {{[a-z0-9]+}}, %{{.*}} read {{[a-z0-9]+}}, %[[SLOT]] read_write {{[a-z0-9]+}}){{.*}} constants [{{.*}}, 4607182418800017408]
// CHECK: program.collective all_reduce
// CHECK: program.entry evaluate
// CHECK: program.entry update
