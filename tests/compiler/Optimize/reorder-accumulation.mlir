// SPDX-License-Identifier: MIT

// A sum of matmuls starts with the matmul that has the fewest terms.

// RUN: qlora-opt %s --reorder-accumulation | FileCheck %s
// RUN: qlora-opt %s --reorder-accumulation --fuse-rows --bucket-gradients --lower-to-program | FileCheck %s --check-prefix=PROGRAM

model.parameter @e : tensor<8x32xf32> {file = "m.safetensors"}
model.parameter @q : tensor<16x32xf32> {file = "m.safetensors"}
model.parameter @k : tensor<8x32xf32> {file = "m.safetensors"}
model.parameter @qk : tensor<24x32xf32> {file = "m.safetensors"}
model.parameter @a : tensor<4x32xf32> {file = "m.safetensors"}
model.parameter @bq : tensor<16x4xf32> {file = "m.safetensors"}
model.parameter @bk : tensor<8x4xf32> {file = "m.safetensors"}
model.parameter @c : tensor<4x16xf32> {file = "m.safetensors"}
model.parameter @g : tensor<32x4xf32> {init = "zero", trainable}

// CHECK-LABEL: train.step accumulate
train.step accumulate batch 1 length 3 ["ids"] {
^bb0(%ids: tensor<1x3xi32>):
  %e = model.weight @e : tensor<8x32xf32>
  %x = model.embedding %ids, %e : (tensor<1x3xi32>, tensor<8x32xf32>) -> tensor<1x3x32xf32>
  %wa = model.weight @a : tensor<4x32xf32>
  %wq = model.weight @q : tensor<16x32xf32>
  %wk = model.weight @k : tensor<8x32xf32>
  %wqk = model.weight @qk : tensor<24x32xf32>
  %wbq = model.weight @bq : tensor<16x4xf32>
  %wbk = model.weight @bk : tensor<8x4xf32>

  // A single matmul.
  // CHECK: %[[A:.*]] = model.linear %[[X:.*]], %{{.*}} : (tensor<1x3x32xf32>, tensor<4x32xf32>)
  // CHECK-NEXT: %[[T:.*]] = model.linear %[[A]], %[[BQ:.*]] {scale = 2.000000e+00 : f64} : (tensor<1x3x4xf32>, tensor<16x4xf32>)
  // CHECK-NEXT: %[[Q:.*]] = model.linear %[[X]], %{{.*}} init %[[T]]
  // CHECK-NEXT: model.glu silu %[[Q]], %[[Q]]
  %q0 = model.linear %x, %wq : (tensor<1x3x32xf32>, tensor<16x32xf32>) -> tensor<1x3x16xf32>
  %a = model.linear %x, %wa : (tensor<1x3x32xf32>, tensor<4x32xf32>) -> tensor<1x3x4xf32>
  %q = model.linear %a, %wbq init %q0 {scale = 2.0 : f64} : (tensor<1x3x4xf32>, tensor<16x4xf32>, tensor<1x3x16xf32>) -> tensor<1x3x16xf32>
  %qq = model.glu silu %q, %q : tensor<1x3x16xf32>

  // Joined matmuls. Each range of the result has one addend, which is added in
  // place, without a copy.
  // CHECK: %[[T0:.*]] = model.linear %[[A]], %{{.*}} : (tensor<1x3x4xf32>, tensor<16x4xf32>)
  // CHECK-NEXT: %[[T1:.*]] = model.linear %[[A]], %{{.*}} : (tensor<1x3x4xf32>, tensor<8x4xf32>)
  // CHECK-NEXT: %[[C:.*]] = model.concat %[[T0]], %[[T1]] : (tensor<1x3x16xf32>, tensor<1x3x8xf32>) -> tensor<1x3x24xf32>
  // CHECK-NEXT: %[[Y:.*]] = model.linear %[[X]], %{{.*}} init %[[C]]
  // CHECK-NEXT: %[[P:.*]]:2 = model.split %[[Y]]
  // CHECK-NEXT: model.glu silu %[[P]]#0, %[[P]]#0
  // CHECK-NEXT: model.glu silu %[[P]]#1, %[[P]]#1
  %y = model.linear %x, %wqk : (tensor<1x3x32xf32>, tensor<24x32xf32>) -> tensor<1x3x24xf32>
  %0:2 = model.split %y : (tensor<1x3x24xf32>) -> (tensor<1x3x16xf32>, tensor<1x3x8xf32>)
  %1 = model.linear %a, %wbq init %0#0 : (tensor<1x3x4xf32>, tensor<16x4xf32>, tensor<1x3x16xf32>) -> tensor<1x3x16xf32>
  %2 = model.linear %a, %wbk init %0#1 : (tensor<1x3x4xf32>, tensor<8x4xf32>, tensor<1x3x8xf32>) -> tensor<1x3x8xf32>
  %3 = model.glu silu %1, %1 : tensor<1x3x16xf32>
  %4 = model.glu silu %2, %2 : tensor<1x3x8xf32>

  // A range has no addend: unchanged.
  // CHECK: %[[Z:.*]] = model.linear %[[X]], %{{.*}} : (tensor<1x3x32xf32>, tensor<24x32xf32>)
  // CHECK-NEXT: %[[R:.*]]:2 = model.split %[[Z]]
  // CHECK-NEXT: model.linear %[[A]], %{{.*}} init %[[R]]#0
  %z = model.linear %x, %wqk : (tensor<1x3x32xf32>, tensor<24x32xf32>) -> tensor<1x3x24xf32>
  %5:2 = model.split %z : (tensor<1x3x24xf32>) -> (tensor<1x3x16xf32>, tensor<1x3x8xf32>)
  %6 = model.linear %a, %wbq init %5#0 : (tensor<1x3x4xf32>, tensor<16x4xf32>, tensor<1x3x16xf32>) -> tensor<1x3x16xf32>
  %7 = model.glu silu %6, %6 : tensor<1x3x16xf32>
  %8 = model.glu silu %5#1, %5#1 : tensor<1x3x8xf32>
  // A result is read before the next one is computed, for example to add a
  // bias.
  // CHECK: %[[T2:.*]] = model.linear %[[A]], %{{.*}} : (tensor<1x3x4xf32>, tensor<16x4xf32>)
  // CHECK-NEXT: %[[T3:.*]] = model.linear %[[A]], %{{.*}} : (tensor<1x3x4xf32>, tensor<8x4xf32>)
  // CHECK-NEXT: %[[D:.*]] = model.concat %[[T2]], %[[T3]]
  // CHECK-NEXT: %[[W:.*]] = model.linear %[[X]], %{{.*}} init %[[D]]
  // CHECK-NEXT: %[[S:.*]]:2 = model.split %[[W]]
  // CHECK-NEXT: model.glu silu %[[S]]#0, %[[S]]#0
  // CHECK-NEXT: model.glu silu %[[S]]#1, %[[S]]#1
  %w = model.linear %x, %wqk : (tensor<1x3x32xf32>, tensor<24x32xf32>) -> tensor<1x3x24xf32>
  %9:2 = model.split %w : (tensor<1x3x24xf32>) -> (tensor<1x3x16xf32>, tensor<1x3x8xf32>)
  %10 = model.linear %a, %wbq init %9#0 : (tensor<1x3x4xf32>, tensor<16x4xf32>, tensor<1x3x16xf32>) -> tensor<1x3x16xf32>
  %11 = model.glu silu %10, %10 : tensor<1x3x16xf32>
  %12 = model.linear %a, %wbk init %9#1 : (tensor<1x3x4xf32>, tensor<8x4xf32>, tensor<1x3x8xf32>) -> tensor<1x3x8xf32>
  %13 = model.glu silu %12, %12 : tensor<1x3x8xf32>

  // A matmul reads another matmul's result: both are unchanged.
  // CHECK: %[[U:.*]]:2 = model.split
  // CHECK-NEXT: %[[V:.*]] = model.linear %[[A]], %{{.*}} init %[[U]]#0
  // CHECK-NEXT: %[[B:.*]] = model.linear %[[V]], %{{.*}} : (tensor<1x3x16xf32>, tensor<4x16xf32>)
  // CHECK-NEXT: model.linear %[[B]], %{{.*}} init %[[U]]#1
  %wc = model.weight @c : tensor<4x16xf32>
  %u = model.linear %x, %wqk : (tensor<1x3x32xf32>, tensor<24x32xf32>) -> tensor<1x3x24xf32>
  %14:2 = model.split %u : (tensor<1x3x24xf32>) -> (tensor<1x3x16xf32>, tensor<1x3x8xf32>)
  %15 = model.linear %a, %wbq init %14#0 : (tensor<1x3x4xf32>, tensor<16x4xf32>, tensor<1x3x16xf32>) -> tensor<1x3x16xf32>
  %16 = model.linear %15, %wc : (tensor<1x3x16xf32>, tensor<4x16xf32>) -> tensor<1x3x4xf32>
  %17 = model.linear %16, %wbk init %14#1 : (tensor<1x3x4xf32>, tensor<8x4xf32>, tensor<1x3x8xf32>) -> tensor<1x3x8xf32>
  %18 = model.glu silu %15, %15 : tensor<1x3x16xf32>
  %19 = model.glu silu %17, %17 : tensor<1x3x8xf32>
  %g = train.linear_weight_grad %x, %a {scale = 1.0 : f64, phase = #model.phase<backward>} : (tensor<1x3x32xf32>, tensor<1x3x4xf32>) -> tensor<32x4xf32>
  train.accumulate @g, %g {phase = #model.phase<backward>} : tensor<32x4xf32>
}

// The joined matmuls in the program: results are written to ranges of one
// buffer, with its stride, and the joined matmul adds to them.
// PROGRAM-LABEL: program.entry accumulate
// PROGRAM-NOT: copy_rows
// PROGRAM: program.launch @matmul({{.*}} write {{[a-z0-9]+}}){{.*}} constants [3, 16, 4, 4, 4, 24,
// PROGRAM: program.view
// PROGRAM: program.launch @matmul({{.*}} write {{[a-z0-9]+}}){{.*}} constants [3, 8, 4, 4, 4, 24,
// PROGRAM: program.launch @matmul({{.*}} read_write {{[a-z0-9]+}}){{.*}} constants [3, 24, 32, 32, 32, 24,
// PROGRAM-NOT: copy_rows
