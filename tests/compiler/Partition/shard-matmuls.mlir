// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --shard-matmuls=ranks=2 | FileCheck %s
// RUN: qlora-opt %s --shard-matmuls=ranks=2 --build-train-step | FileCheck %s --check-prefix=STEP
// RUN: qlora-opt %s --shard-matmuls=ranks=1 | FileCheck %s --check-prefix=ONE
// RUN: not qlora-opt %s --shard-matmuls=ranks=0 2>&1 | FileCheck %s --check-prefix=ZERO
// RUN: not qlora-opt %s --shard-matmuls=ranks=3 2>&1 | FileCheck %s --check-prefix=THREE

// ONE-NOT: slice
// ONE-NOT: model.all_sum
// ZERO: error: expects at least one tensor-parallel rank, but got 0
// THREE: error: {{.*}} columns, not divisible by --parallel tp=3; use a number that divides them

// q is sharded by rows and o by columns; 8-bit scales become f32. Gate and up
// are one weight, and each rank has a slice of both. Trainable parameters and
// the norm over all columns are unsharded.
// CHECK: module attributes {model.mesh = #model.mesh<tp = 2>, {{.*}}ranks = 2 {{.*}}weights = 8
// CHECK-DAG: model.parameter @q : tensor<64x128x!model.quantized<nf4, 64, false>> {{.*}}slice = #model.slice<2, 0, [128], true>
// CHECK-DAG: model.parameter @o : tensor<128x64x!model.quantized<nf4, 64, false>> {{.*}}slice = #model.slice<2, 1, [128], true>
// CHECK-DAG: model.parameter @bias : tensor<64xf32> {{.*}}slice = #model.slice<2, 0, [128]>
// CHECK-DAG: model.parameter @gate_up : tensor<256x128xbf16> {{.*}}slice = #model.slice<2, 0, [256, 256]>
// CHECK-DAG: model.parameter @down : tensor<128x128xbf16> {{.*}}slice = #model.slice<2, 1, [256]>
// CHECK-DAG: model.parameter @norm : tensor<128xf32> {file = "m.safetensors"}
// CHECK-DAG: model.parameter @b : tensor<128x8xf32> {init = "zero", trainable}
// CHECK-DAG: model.parameter @a2 : tensor<8x128xf32> {init = "kaiming", trainable}

// CHECK: func.func @forward
// A is unsharded; a rank uses its own rows of B.
// CHECK: %[[Q:.*]] = model.linear %[[N:.*]], %{{.*}} {module = "q"} : {{.*}} -> tensor<1x16x64xf32>
// CHECK: %[[A:.*]] = model.linear %[[N]], %{{.*}} : {{.*}} -> tensor<1x16x8xf32>
// CHECK: %[[B:.*]] = model.weight @b {part = #model.part<2, 0, 0, 128, 128>} : tensor<64x8xf32>
// CHECK: %[[QB:.*]] = model.linear %[[A]], %[[B]] init %[[Q]] {{.*}} -> tensor<1x16x64xf32>
// CHECK: %[[QC:.*]] = model.add_bias %[[QB]], %{{.*}} -> tensor<1x16x64xf32>
// CHECK: %[[ATT:.*]], %{{.*}} = model.attention %[[QC]], %[[QC]], %[[QC]], {{.*}}heads = 2 : i64, kv_heads = 2 : i64{{.*}} -> (tensor<1x16x64xf32>, tensor<1x2x16xf32>)
// Dropout masks are numbered by the unsharded columns.
// CHECK: model.dropout %[[ATT]] {{.*}}shared
// Two partial sums are added and reduced together, before the first op that
// needs the complete sum.
// CHECK: %[[O:.*]] = model.linear %[[ATT]], %{{.*}} {module = "o"} : {{.*}} -> tensor<1x16x128xf32>
// CHECK: %[[A2:.*]] = model.weight @a2 {part = #model.part<2, 1, 0, 128, 128>} : tensor<8x64xf32>
// CHECK: %[[Y:.*]] = model.linear %{{.*}}, %{{.*}} init %[[O]]
// CHECK-NEXT: %[[S:.*]] = model.all_sum %[[Y]]
// CHECK-NEXT: model.add %{{.*}}, %[[S]]
// A rank uses two ranges of rows of a trainable weight.
// CHECK: model.weight @bgu {part = #model.part<2, 0, 0, 256, 512>} : tensor<128x8xf32>
// CHECK: model.weight @bgu {part = #model.part<2, 0, 256, 256, 512>} : tensor<128x8xf32>
// CHECK: model.concat {{.*}}rows{{.*}} -> tensor<256x8xf32>
// CHECK: %[[GU:.*]]:2 = model.split %{{.*}} : (tensor<1x16x256xf32>) -> (tensor<1x16x128xf32>, tensor<1x16x128xf32>)
// CHECK: model.glu {{.*}} : tensor<1x16x128xf32>

// The gradient of a partial sum is a partial sum too, and a slice of the
// gradient is accumulated.
// STEP: train.step accumulate
// STEP: model.all_sum
// STEP: model.all_sum {{.*}}phase = #model.phase<backward>
// STEP: train.accumulate @bgu, %{{.*}} {part = #model.part<2, 0, {{.*}}, 256, 512>, {{.*}}tensor<128x8xf32>
// STEP: train.accumulate @a2, %{{.*}} {part = #model.part<2, 1, 0, 128, 128>, {{.*}}tensor<8x64xf32>
// STEP: train.accumulate @b, %{{.*}} {part = #model.part<2, 0, 0, 128, 128>, {{.*}}tensor<64x8xf32>

!nf4 = !model.quantized<nf4, 64, true>
model.parameter @table : tensor<96x128xf32> {file = "m.safetensors"}
model.parameter @norm : tensor<128xf32> {file = "m.safetensors"}
model.parameter @q : tensor<128x128x!nf4> {file = "m.safetensors", file_type = bf16, quantized = !nf4}
model.parameter @bias : tensor<128xf32> {file = "m.safetensors"}
model.parameter @o : tensor<128x128x!nf4> {file = "m.safetensors", file_type = bf16, quantized = !nf4}
model.parameter @gate_up : tensor<512x128xbf16> {file = "m.safetensors"}
model.parameter @down : tensor<128x256xbf16> {file = "m.safetensors"}
model.parameter @head : tensor<96x128xbf16> {file = "m.safetensors"}
model.parameter @a : tensor<8x128xf32> {init = "kaiming", trainable}
model.parameter @b : tensor<128x8xf32> {init = "zero", trainable}
model.parameter @a2 : tensor<8x128xf32> {init = "kaiming", trainable}
model.parameter @b2 : tensor<128x8xf32> {init = "zero", trainable}
model.parameter @agu : tensor<8x128xf32> {init = "kaiming", trainable}
model.parameter @bgu : tensor<512x8xf32> {init = "zero", trainable}

func.func @forward(%ids: tensor<1x16xi32> {model.input = "ids"},
                   %targets: tensor<1x16xi32> {model.input = "targets"},
                   %segments: tensor<1x16xi32> {model.input = "segments"})
    -> (tensor<1xf32>, tensor<1xf32>, tensor<1x16xi32>)
    attributes {model.batch = 1 : i64, model.length = 16 : i64} {
  %table = model.weight @table : tensor<96x128xf32>
  %x = model.embedding %ids, %table : (tensor<1x16xi32>, tensor<96x128xf32>) -> tensor<1x16x128xf32>
  %norm = model.weight @norm : tensor<128xf32>
  %n = model.rms_norm %x, %norm {epsilon = 1.0e-5 : f64} : (tensor<1x16x128xf32>, tensor<128xf32>) -> tensor<1x16x128xf32>
  %wq = model.weight @q : tensor<128x128x!nf4>
  %q0 = model.linear %n, %wq {module = "q"} : (tensor<1x16x128xf32>, tensor<128x128x!nf4>) -> tensor<1x16x128xf32>
  %wa = model.weight @a : tensor<8x128xf32>
  %a = model.linear %n, %wa : (tensor<1x16x128xf32>, tensor<8x128xf32>) -> tensor<1x16x8xf32>
  %wb = model.weight @b : tensor<128x8xf32>
  %q1 = model.linear %a, %wb init %q0 {scale = 2.0 : f64} : (tensor<1x16x8xf32>, tensor<128x8xf32>, tensor<1x16x128xf32>) -> tensor<1x16x128xf32>
  %bias = model.weight @bias : tensor<128xf32>
  %q = model.add_bias %q1, %bias : (tensor<1x16x128xf32>, tensor<128xf32>) -> tensor<1x16x128xf32>
  %att, %lse = model.attention %q, %q, %q, %segments {heads = 4 : i64, kv_heads = 4 : i64, head_dim = 32 : i64, window = 0 : i64, scale = 1.0 : f64} : (tensor<1x16x128xf32>, tensor<1x16x128xf32>, tensor<1x16x128xf32>, tensor<1x16xi32>) -> (tensor<1x16x128xf32>, tensor<1x4x16xf32>)
  %d = model.dropout %att {probability = 0.1 : f64, id = 1 : i64} : tensor<1x16x128xf32>
  %wo = model.weight @o : tensor<128x128x!nf4>
  %o = model.linear %att, %wo {module = "o"} : (tensor<1x16x128xf32>, tensor<128x128x!nf4>) -> tensor<1x16x128xf32>
  %wa2 = model.weight @a2 : tensor<8x128xf32>
  %a2 = model.linear %d, %wa2 : (tensor<1x16x128xf32>, tensor<8x128xf32>) -> tensor<1x16x8xf32>
  %wb2 = model.weight @b2 : tensor<128x8xf32>
  %y = model.linear %a2, %wb2 init %o {scale = 2.0 : f64} : (tensor<1x16x8xf32>, tensor<128x8xf32>, tensor<1x16x128xf32>) -> tensor<1x16x128xf32>
  %h = model.add %x, %y : tensor<1x16x128xf32>
  %wgu = model.weight @gate_up : tensor<512x128xbf16>
  %gu0 = model.linear %h, %wgu {module = "gate_up"} : (tensor<1x16x128xf32>, tensor<512x128xbf16>) -> tensor<1x16x512xf32>
  %wagu = model.weight @agu : tensor<8x128xf32>
  %agu = model.linear %h, %wagu : (tensor<1x16x128xf32>, tensor<8x128xf32>) -> tensor<1x16x8xf32>
  %wbgu = model.weight @bgu : tensor<512x8xf32>
  %gu = model.linear %agu, %wbgu init %gu0 : (tensor<1x16x8xf32>, tensor<512x8xf32>, tensor<1x16x512xf32>) -> tensor<1x16x512xf32>
  %g, %u = model.split %gu : (tensor<1x16x512xf32>) -> (tensor<1x16x256xf32>, tensor<1x16x256xf32>)
  %m = model.glu silu %g, %u : tensor<1x16x256xf32>
  %wd = model.weight @down : tensor<128x256xbf16>
  %dn = model.linear %m, %wd {module = "down"} : (tensor<1x16x256xf32>, tensor<128x256xbf16>) -> tensor<1x16x128xf32>
  %h2 = model.add %h, %dn : tensor<1x16x128xf32>
  %wh = model.weight @head : tensor<96x128xbf16>
  %loss, %count, %correct = model.head_loss %h2, %wh, %targets : (tensor<1x16x128xf32>, tensor<96x128xbf16>, tensor<1x16xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x16xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x16xi32>
}
