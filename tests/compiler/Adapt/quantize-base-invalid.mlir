// SPDX-License-Identifier: MIT

// MXFP4 needs rows of full blocks.

// RUN: not qlora-opt %s --quantize-base=format=mxfp4 2>&1 | FileCheck %s
// CHECK: error: 'q.weight' has 48 inputs, but MXFP4 needs a multiple of 32
model.parameter @q.weight : tensor<32x48xbf16> {file = "a"}

func.func @forward_8(%x: tensor<1x8x48xf32>) {
  %q = model.weight @q.weight : tensor<32x48xbf16>
  %0 = model.linear %x, %q {module = "q"} : (tensor<1x8x48xf32>, tensor<32x48xbf16>) -> tensor<1x8x32xf32>
  return
}
