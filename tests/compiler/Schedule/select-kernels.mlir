// RUN: qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=32" --quantize-base --attach-adapters='r=4' --fuse-lora --build-train-step --fuse-accumulate --fuse-rows --bucket-gradients --lower-to-program --select-kernels | FileCheck %s

// The first row that accepts, with the workspace it promises to stay within.
// CHECK: %[[W:.*]] = program.buffer workspace bytes
// CHECK: program.launch @panel_matmul.onednn(%{{.*}}, %{{.*}}, %{{.*}}, %[[W]]) access [1, 1, 2, 2]
// CHECK: program.launch @attention.blocked
// CHECK: program.launch @head_loss_grad.chunked
// CHECK: program.kernel @panel_matmul.onednn
