// RUN: qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=32" --attach-adapters='r=4 targets=["q_proj","o_proj"]' --fuse-lora --build-train-step --fuse-accumulate | FileCheck %s

// dX of o_proj is dY . W plus that of the adapter, summed inside the GEMM.
// CHECK: train.step accumulate
// CHECK: %[[DXA:.*]] = train.linear_input_grad {{.*}} : (tensor<2x32x4xf32>, tensor<4x64xf32>) -> tensor<2x32x64xf32>
// CHECK: train.linear_input_grad {{.*}} init %[[DXA]]
