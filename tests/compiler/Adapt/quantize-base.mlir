// SPDX-License-Identifier: MIT

// Weights of linears with a module become 4-bit; all others stay.

// RUN: qlora-opt %s --quantize-base="block=128 double-quant=false" 2>&1 | FileCheck %s
// RUN: qlora-opt %s --quantize-base 2>&1 | FileCheck %s --check-prefix=DEFAULT
// RUN: not qlora-opt %s --quantize-base=block=96 2>&1 | FileCheck %s --check-prefix=BLOCK

// BLOCK: error: expects a power of two from 64 to 4096 as block, but got 96

// RUN: qlora-opt %s --quantize-base=format=llm_int8 2>&1 | FileCheck %s --check-prefix=ROWS
// RUN: not qlora-opt %s --quantize-base=format=gptq 2>&1 | FileCheck %s --check-prefix=FORMAT
// FORMAT: error: unknown format gptq

// RUN: qlora-opt %s --quantize-base=format=mxfp4 2>&1 | FileCheck %s --check-prefix=MICRO

// A weight with two readers, one of which is not a linear, is unchanged, with a
// remark.
// CHECK: remark: 'tied.weight' is not quantized, because not only linears use it
// CHECK: note: another use

// CHECK: model.parameter @q.weight : tensor<32x64x!model.quantized<nf4, 128, false>> {file = "a", file_type = bf16, quantized = !model.quantized<nf4, 128, false>}
// DEFAULT: model.parameter @q.weight : tensor<32x64x!model.quantized<nf4, 64, true>> {file = "a", file_type = bf16, quantized = !model.quantized<nf4, 64, true>}
// MICRO: model.parameter @q.weight : tensor<32x64x!model.quantized<mxfp4, 32, true>>
// ROWS: model.parameter @q.weight : tensor<32x64x!model.quantized<llm_int8, 64, false>> {file = "a", file_type = bf16, quantized = !model.quantized<llm_int8, 64, false>}
model.parameter @q.weight : tensor<32x64xbf16> {file = "a"}

// A weight that is stored in 4 bits keeps its block size.
// CHECK: model.parameter @k.weight : tensor<32x64x!model.quantized<nf4, 64, true>> {file = "a", stored_quantized}
model.parameter @k.weight : tensor<32x64x!model.quantized<nf4, 64, true>> {file = "a", stored_quantized}

// A weight of [in, out] is quantized as [out, in], as bitsandbytes does for a
// Conv1D.
// DEFAULT: model.parameter @conv.weight : tensor<32x64x!model.quantized<nf4, 64, true>> {file = "a", file_type = bf16, quantized = !model.quantized<nf4, 64, true>, transposed}
// ROWS: model.parameter @conv.weight : tensor<32x64x!model.quantized<llm_int8, 64, false>>
model.parameter @conv.weight : tensor<64x32xbf16> {file = "a"}

// A weight whose two readers have different layouts is unchanged.
// DEFAULT: model.parameter @both.weight : tensor<64x64xbf16> {file = "a"}
model.parameter @both.weight : tensor<64x64xbf16> {file = "a"}

// A linear without a module is not part of the base.
// CHECK: model.parameter @a.weight : tensor<32x64xf32> {init = "kaiming", trainable}
model.parameter @a.weight : tensor<32x64xf32> {init = "kaiming", trainable}

// CHECK: model.parameter @tied.weight : tensor<32x64xbf16> {file = "a"}
model.parameter @tied.weight : tensor<32x64xbf16> {file = "a"}

// CHECK: model.parameter @norm.weight : tensor<64xbf16> {file = "a"}
model.parameter @norm.weight : tensor<64xbf16> {file = "a"}

// CHECK-LABEL: func.func @forward_8
func.func @forward_8(%x: tensor<1x8x64xf32>, %ids: tensor<1x8xi32>) {
  %n = model.weight @norm.weight : tensor<64xbf16>
  %h = model.rms_norm %x, %n {epsilon = 1.0e-5 : f64} : (tensor<1x8x64xf32>, tensor<64xbf16>) -> tensor<1x8x64xf32>
  // CHECK: %[[Q:.*]] = model.weight @q.weight : tensor<32x64x!model.quantized<nf4, 128, false>>
  // CHECK: model.linear %{{.*}}, %[[Q]] {module = "q"} : (tensor<1x8x64xf32>, tensor<32x64x!model.quantized<nf4, 128, false>>) -> tensor<1x8x32xf32>
  %q = model.weight @q.weight : tensor<32x64xbf16>
  %0 = model.linear %h, %q {module = "q"} : (tensor<1x8x64xf32>, tensor<32x64xbf16>) -> tensor<1x8x32xf32>
  %k = model.weight @k.weight : tensor<32x64x!model.quantized<nf4, 64, true>>
  %1 = model.linear %h, %k {module = "k"} : (tensor<1x8x64xf32>, tensor<32x64x!model.quantized<nf4, 64, true>>) -> tensor<1x8x32xf32>
  %a = model.weight @a.weight : tensor<32x64xf32>
  %2 = model.linear %h, %a : (tensor<1x8x64xf32>, tensor<32x64xf32>) -> tensor<1x8x32xf32>
  // DEFAULT: %[[C:.*]] = model.weight @conv.weight : tensor<32x64x!model.quantized<nf4, 64, true>>
  // DEFAULT: model.linear %{{.*}}, %[[C]] {module = "conv"} : (tensor<1x8x64xf32>, tensor<32x64x!model.quantized<nf4, 64, true>>) -> tensor<1x8x32xf32>
  %c = model.weight @conv.weight : tensor<64x32xbf16>
  %5 = model.linear %h, %c layout in_out {module = "conv"} : (tensor<1x8x64xf32>, tensor<64x32xbf16>) -> tensor<1x8x32xf32>
  %b = model.weight @both.weight : tensor<64x64xbf16>
  %6 = model.linear %h, %b layout in_out {module = "b"} : (tensor<1x8x64xf32>, tensor<64x64xbf16>) -> tensor<1x8x64xf32>
  %7 = model.linear %h, %b {module = "b"} : (tensor<1x8x64xf32>, tensor<64x64xbf16>) -> tensor<1x8x64xf32>
  %t = model.weight @tied.weight : tensor<32x64xbf16>
  %3 = model.linear %h, %t {module = "t"} : (tensor<1x8x64xf32>, tensor<32x64xbf16>) -> tensor<1x8x32xf32>
  %4 = model.embedding %ids, %t : (tensor<1x8xi32>, tensor<32x64xbf16>) -> tensor<1x8x64xf32>
  return
}

// Every copy of the function has the new type.
// CHECK-LABEL: func.func @forward_16
func.func @forward_16(%x: tensor<1x16x64xf32>) {
  // CHECK: model.weight @q.weight : tensor<32x64x!model.quantized<nf4, 128, false>>
  %q = model.weight @q.weight : tensor<32x64xbf16>
  %0 = model.linear %x, %q {module = "q"} : (tensor<1x16x64xf32>, tensor<32x64xbf16>) -> tensor<1x16x32xf32>
  return
}
