// RUN: qlora-opt %S/../Inputs/layer.mlir --quantize-base="block=128 double-quant=false" | FileCheck %s
// RUN: not qlora-opt %S/../Inputs/layer.mlir --quantize-base="block=100" 2>&1 | FileCheck %s --check-prefix=BLOCK

// The weights of linears only: not the embedding (which is the head), not the
// norm.
// CHECK: model.parameter @embed : tensor<128x64xbf16>
// CHECK: model.parameter @n1 : tensor<64xbf16>
// CHECK: model.parameter @wq : tensor<64x64x!model.nf4<128, false>>
// CHECK-SAME: file_type = bf16
// CHECK-SAME: quantized = !model.nf4<128, false>
// CHECK: %[[W:.*]] = model.weight @wq : tensor<64x64x!model.nf4<128, false>>
// CHECK: model.linear %{{.*}}, %[[W]]

// BLOCK: expects a power of two from 64 to 4096 as block, but got 100
