// SPDX-License-Identifier: MIT

// Frozen linears with the same x become one GEMM if views of the GEMM's result
// can replace the linears' results.

// RUN: qlora-opt %s --concat-siblings | FileCheck %s
// RUN: qlora-opt %s --concat-siblings --fuse-rows --bucket-gradients --lower-to-program | FileCheck %s --check-prefix=PROGRAM

model.parameter @q : tensor<16x8x!model.quantized<nf4, 64, false>> {file = "m.safetensors", file_type = bf16, quantized = !model.quantized<nf4, 64, false>}
model.parameter @k : tensor<8x8x!model.quantized<nf4, 64, false>> {file = "m.safetensors", file_type = bf16, quantized = !model.quantized<nf4, 64, false>}
model.parameter @v : tensor<8x8x!model.quantized<nf4, 64, false>> {file = "m.safetensors", file_type = bf16, quantized = !model.quantized<nf4, 64, false>}
model.parameter @e : tensor<8x8xf32> {init = "zero", trainable}
model.parameter @b : tensor<16x8xf32> {file = "m.safetensors"}

// CHECK-LABEL: train.step accumulate
train.step accumulate batch 1 length 3 ["ids"] {
^bb0(%ids: tensor<1x3xi32>):
  %e = model.weight @e : tensor<8x8xf32>
  %x = model.embedding %ids, %e : (tensor<1x3xi32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>

  // q and k live until they are squared. v is saved for the backward, and a
  // saved range keeps the whole buffer alive, so v stays separate.
  // CHECK-DAG: %[[Q:.*]] = train.decode %{{.*}} : (tensor<16x8x
  // CHECK-DAG: %[[K:.*]] = train.decode %{{.*}} : (tensor<8x8x
  // CHECK: %[[QK:.*]] = model.concat %[[Q]], %[[K]] {layer = 0 : i64, rows} : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<24x8xf32>
  // CHECK-NEXT: %[[Y:.*]] = model.linear %[[X:.*]], %[[QK]] {layer = 0 : i64, module = "q"
  // CHECK-NEXT: %[[P:.*]]:2 = model.split %[[Y]] {layer = 0 : i64} : (tensor<1x3x24xf32>) -> (tensor<1x3x16xf32>, tensor<1x3x8xf32>)
  // CHECK: model.linear %[[X]], %{{.*}} init %[[P]]#0
  // CHECK: %[[V:.*]] = train.decode
  // CHECK-NEXT: model.linear %[[X]], %[[V]] {{.*}}module = "v"
  %wq = model.weight @q : tensor<16x8x!model.quantized<nf4, 64, false>>
  %nq = train.decode %wq {layer = 0 : i64} : (tensor<16x8x!model.quantized<nf4, 64, false>>) -> tensor<16x8xf32>
  %q0 = model.linear %x, %nq {layer = 0 : i64, module = "q"} : (tensor<1x3x8xf32>, tensor<16x8xf32>) -> tensor<1x3x16xf32>
  %wb = model.weight @b : tensor<16x8xf32>
  %q = model.linear %x, %wb init %q0 {layer = 0 : i64} : (tensor<1x3x8xf32>, tensor<16x8xf32>, tensor<1x3x16xf32>) -> tensor<1x3x16xf32>
  %wk = model.weight @k : tensor<8x8x!model.quantized<nf4, 64, false>>
  %nk = train.decode %wk {layer = 0 : i64} : (tensor<8x8x!model.quantized<nf4, 64, false>>) -> tensor<8x8xf32>
  %k = model.linear %x, %nk {layer = 0 : i64, module = "k"} : (tensor<1x3x8xf32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
  %wv = model.weight @v : tensor<8x8x!model.quantized<nf4, 64, false>>
  %nv = train.decode %wv {layer = 0 : i64} : (tensor<8x8x!model.quantized<nf4, 64, false>>) -> tensor<8x8xf32>
  %v = model.linear %x, %nv {layer = 0 : i64, module = "v"} : (tensor<1x3x8xf32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
  %qq = model.glu silu %q, %q {layer = 0 : i64} : tensor<1x3x16xf32>
  %kk = model.glu silu %k, %k {layer = 0 : i64} : tensor<1x3x8xf32>

  // dX is a sum of terms of q, k and v and a term of q's adapter. The adapter's
  // term is computed first, then one GEMM for q, k and v.
  // CHECK: %[[DQ:.*]] = model.glu silu {{.*}}phase = #model.phase<backward>
  // CHECK: %[[DK:.*]] = model.glu silu {{.*}}phase = #model.phase<backward>
  // CHECK: %[[DV:.*]] = model.glu silu {{.*}}phase = #model.phase<backward>
  // CHECK: %[[ADAPTER:.*]] = model.linear %[[DQ]], %{{.*}} layout in_out {layer = 0 : i64, phase = #model.phase<backward>}
  // CHECK: %[[N:.*]] = model.concat %{{.*}}, %{{.*}}, %{{.*}} {layer = 0 : i64, phase = #model.phase<backward>, rows} : {{.*}} -> tensor<32x8xf32>
  // CHECK: %[[DY:.*]] = model.concat %[[DQ]], %[[DK]], %[[DV]] {layer = 0 : i64, phase = #model.phase<backward>} : (tensor<1x3x16xf32>, tensor<1x3x8xf32>, tensor<1x3x8xf32>) -> tensor<1x3x32xf32>
  // CHECK: %[[DX:.*]] = model.linear %[[DY]], %[[N]] layout in_out init %[[ADAPTER]]
  // CHECK-NOT: model.linear
  // CHECK: model.glu silu %[[DX]], %[[DX]]
  %dq = model.glu silu %qq, %qq {layer = 0 : i64, phase = #model.phase<backward>} : tensor<1x3x16xf32>
  %dk = model.glu silu %kk, %kk {layer = 0 : i64, phase = #model.phase<backward>} : tensor<1x3x8xf32>
  %dv = model.glu silu %v, %v {layer = 0 : i64, phase = #model.phase<backward>} : tensor<1x3x8xf32>
  %mq = train.decode %wq {layer = 0 : i64, phase = #model.phase<backward>} : (tensor<16x8x!model.quantized<nf4, 64, false>>) -> tensor<16x8xf32>
  %0 = model.linear %dq, %mq layout in_out {layer = 0 : i64, phase = #model.phase<backward>} : (tensor<1x3x16xf32>, tensor<16x8xf32>) -> tensor<1x3x8xf32>
  %mk = train.decode %wk {layer = 0 : i64, phase = #model.phase<backward>} : (tensor<8x8x!model.quantized<nf4, 64, false>>) -> tensor<8x8xf32>
  %1 = model.linear %dk, %mk layout in_out init %0 {layer = 0 : i64, phase = #model.phase<backward>} : (tensor<1x3x8xf32>, tensor<8x8xf32>, tensor<1x3x8xf32>) -> tensor<1x3x8xf32>
  %2 = model.linear %dq, %wb layout in_out init %1 {layer = 0 : i64, phase = #model.phase<backward>} : (tensor<1x3x16xf32>, tensor<16x8xf32>, tensor<1x3x8xf32>) -> tensor<1x3x8xf32>
  %mv = train.decode %wv {layer = 0 : i64, phase = #model.phase<backward>} : (tensor<8x8x!model.quantized<nf4, 64, false>>) -> tensor<8x8xf32>
  %3 = model.linear %dv, %mv layout in_out init %2 {layer = 0 : i64, phase = #model.phase<backward>} : (tensor<1x3x8xf32>, tensor<8x8xf32>, tensor<1x3x8xf32>) -> tensor<1x3x8xf32>
  %dx = model.glu silu %3, %3 {layer = 0 : i64, phase = #model.phase<backward>} : tensor<1x3x8xf32>
  %de = train.embedding_grad %ids, %dx {phase = #model.phase<backward>} : (tensor<1x3xi32>, tensor<1x3x8xf32>) -> tensor<8x8xf32>
  train.accumulate @e, %de {phase = #model.phase<backward>} : tensor<8x8xf32>
}

// In the program, q, k and v are ranges of one buffer. Nothing is copied: the
// adapter adds to q's columns in place, and rows of the ranges have the
// buffer's stride.
// PROGRAM-LABEL: program.entry accumulate_last
// PROGRAM-NOT: copy_rows
// PROGRAM: %[[S:.*]] = program.buffer activation bytes 768
// PROGRAM: program.view %[[S]] offset 0 bytes 512
// PROGRAM: program.launch @decode
// PROGRAM: program.view %[[S]] offset 512 bytes 256
// PROGRAM: program.launch @decode
// PROGRAM: program.launch @matmul(%{{.*}} read {{[a-z0-9]+}}, %[[S]] read {{[a-z0-9]+}}, %{{.*}} write {{[a-z0-9]+}}){{.*}} constants [3, 24, 8, 8, 8, 24,
// PROGRAM: program.launch @matmul({{.*}} read {{[a-z0-9]+}}, {{.*}} read {{[a-z0-9]+}}, {{.*}} read_write {{[a-z0-9]+}}){{.*}} constants [3, 16, 8, 8, 8, 24,
// PROGRAM-NOT: copy_rows
// PROGRAM: program.launch @matmul({{.*}} read {{[a-z0-9]+}}, {{.*}} read {{[a-z0-9]+}}, {{.*}} read_write {{[a-z0-9]+}}){{.*}} constants [3, 8, 32, 32, 8, 8,
// PROGRAM-NOT: copy_rows

// One value per row, such as a gate, stays separate.
// CHECK-LABEL: train.step evaluate
// CHECK-NOT: model.concat
model.parameter @g : tensor<1x8xf16> {file = "m.safetensors"}
model.parameter @h : tensor<8x8xf16> {file = "m.safetensors"}
train.step evaluate batch 1 length 3 ["ids"] {
^bb0(%ids: tensor<1x3xi32>):
  %e = model.weight @e : tensor<8x8xf32>
  %x = model.embedding %ids, %e : (tensor<1x3xi32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
  %wg = model.weight @g : tensor<1x8xf16>
  %ng = train.decode %wg {layer = 0 : i64} : (tensor<1x8xf16>) -> tensor<1x8xf32>
  %g = model.linear %x, %ng {layer = 0 : i64, module = "g"} : (tensor<1x3x8xf32>, tensor<1x8xf32>) -> tensor<1x3x1xf32>
  %wh = model.weight @h : tensor<8x8xf16>
  %nh = train.decode %wh {layer = 0 : i64} : (tensor<8x8xf16>) -> tensor<8x8xf32>
  %h = model.linear %x, %nh {layer = 0 : i64, module = "h"} : (tensor<1x3x8xf32>, tensor<8x8xf32>) -> tensor<1x3x8xf32>
}
