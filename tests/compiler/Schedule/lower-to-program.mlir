// RUN: qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=32" --quantize-base --attach-adapters='r=4' --fuse-lora --build-train-step --fuse-accumulate --fuse-rows --bucket-gradients --lower-to-program | FileCheck %s

// The parts of grouped adapters keep their names and get rows of the group.
// CHECK: program.parameter "base_model.model.l.0.q_proj.lora_A.weight" trainable offset [[#A:]] bytes 1024 [4, 64]
// CHECK: program.parameter "base_model.model.l.0.k_proj.lora_A.weight" trainable offset [[#A+1024]] bytes 1024 [4, 64]
// Only accumulate_last has collectives.
// CHECK: program.entry accumulate batch 2 length 32
// CHECK-NOT: program.collective
// CHECK: program.entry accumulate_last batch 2 length 32
// The GEMM with B adds to the result of the base GEMM (read_write).
// CHECK: program.launch @panel_matmul(%{{.*}} read {{[a-z0-9]+}}, %{{.*}} read {{[a-z0-9]+}}, %[[Q:.*]] write {{[a-z0-9]+}})
// CHECK: program.launch @matmul(%{{.*}} read {{[a-z0-9]+}}, %{{.*}} read {{[a-z0-9]+}}, %[[Q]] read_write {{[a-z0-9]+}})
// The GEMMs for dA and dB add to the gradient arena directly, without
// accumulate kernels. Their beta is 1.0, as bits 4607182418800017408.
// CHECK: %[[SLOT:.*]] = program.buffer gradient offset 4096 bytes 1024
// CHECK: program.launch @matmul(%{{.*}} read {{[a-z0-9]+}}, %{{.*}} read {{[a-z0-9]+}}, %[[SLOT]] read_write {{[a-z0-9]+}}){{.*}} constants [{{.*}}, 4607182418800017408]
// CHECK: program.collective all_reduce
// CHECK: program.entry evaluate
// CHECK: program.entry update
