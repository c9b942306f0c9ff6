// SPDX-License-Identifier: MIT

// The forward values that are saved for the backward in 8 bits, and where they
// are decoded.

// RUN: qlora-opt %s --encode-activations | FileCheck %s
// RUN: qlora-opt %s --encode-activations --remark-policy=all --remarks-filter=encode-activations -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: qlora-opt %s --encode-activations --fuse-rows | FileCheck %s --check-prefix=FUSED
// RUN: qlora-opt %s --encode-activations --rematerialize="budget=21500" --fuse-rows | FileCheck %s --check-prefix=AGAIN

// REMARK: remark: [Passed] encoded | Category:encode-activations | Remark="544 bytes kept for 2 weight gradients instead of 1024
// REMARK: remark: [Passed] encoded | Category:encode-activations | Remark="544 bytes kept for 1 weight gradients instead of 1024

model.parameter @table : tensor<32x64xbf16> {file = "m.safetensors"}
model.parameter @norm : tensor<64xbf16> {file = "m.safetensors"}
model.parameter @w : tensor<64x64xbf16> {file = "m.safetensors"}
model.parameter @a : tensor<64x64xf32> {init = "zero", trainable}
model.parameter @b : tensor<64x64xf32> {init = "zero", trainable}
model.parameter @c : tensor<64x64xf32> {init = "zero", trainable}

// Encoded, because only matmuls for gradients of parameters read them:
//   n   read for da and db (both in block 0, so n is decoded once)
//   s   read for dc
// Not encoded:
//   x, o, g   also read for the gradients of activations dx, dv and dg
//   z         the result of a matmul
//
// n and s have 8 x 64 values: 8 x (64 + 4) bytes each instead of 8 x 64 x 2.
// CHECK-LABEL: train.step accumulate batch 1 length 8
// CHECK-SAME: "encode-activations" = {encoded_bytes = 1088 : i64, exact_bytes = 2048 : i64, values = 2 : i64}
// CHECK: %[[X:.*]] = model.embedding
// CHECK-NEXT: %[[N:.*]] = model.rms_norm %[[X]]
// CHECK-NEXT: %[[NC:.*]], %[[NS:.*]] = train.encode_rows %[[N]] {layer = 0 : i64} : (tensor<1x8x64xbf16>) -> (tensor<1x8x64xi8>, tensor<1x8x1xf32>)
// CHECK-NEXT: %[[G:.*]] = model.linear %[[N]]
// CHECK-NEXT: %[[U:.*]] = model.linear %[[N]]
// CHECK-NEXT: %[[S:.*]] = model.glu
// CHECK-NEXT: %[[SC:.*]], %[[SS:.*]] = train.encode_rows %[[S]]
// CHECK-NEXT: %[[Z:.*]] = model.linear %[[S]]
// CHECK-NEXT: %[[O:.*]] = model.add
// CHECK-NOT: encode_rows
// CHECK: %[[DZ:.*]] = train.linear_weight_grad %{{.*}}, %[[Z]]
// CHECK-NEXT: %[[S2:.*]] = train.decode_rows %[[SC]], %[[SS]] {layer = 0 : i64, phase = #model.phase<backward>} : (tensor<1x8x64xi8>, tensor<1x8x1xf32>) -> tensor<1x8x64xbf16>
// CHECK-NEXT: train.linear_weight_grad %{{.*}}, %[[S2]] init %[[DZ]]
// CHECK: train.linear_weight_grad %{{.*}}, %[[O]]
// CHECK: model.glu silu %{{.*}}, %[[G]]
// CHECK: %[[N2:.*]] = train.decode_rows %[[NC]], %[[NS]]
// CHECK-NEXT: train.linear_weight_grad %{{.*}}, %[[N2]]
// CHECK: train.linear_weight_grad %{{.*}}, %[[N2]]
// CHECK-NOT: decode_rows
// CHECK: model.add %{{.*}}, %[[X]]

// The op that computes the value and its encoding are one kernel, with a scale
// per row.
// FUSED-LABEL: train.step accumulate batch 1 length 8
// FUSED: %{{.*}}:3 = model.rows(%{{.*}}, %{{.*}}) attributes {columns = 64 : i64, label = "rms_norm__encode_rows", layer = 0 : i64, maps = [#model.map<full>, #model.map<column>]} : (tensor<1x8x64xbf16>, tensor<64xbf16>) -> (tensor<1x8x64xbf16>, tensor<1x8x64xi8>, tensor<1x8x1xf32>) {
// FUSED: %[[MAX:.*]] = model.row_max
// FUSED: %[[LIMIT:.*]] = arith.maximumf %[[MAX]]
// FUSED: %[[SCALE:.*]] = arith.divf %[[LIMIT]]
// FUSED: %[[CODES:.*]] = math.roundeven
// FUSED: model.row_yield %{{.*}}, %[[CODES]], %[[SCALE]] : tensor<64xf32>, tensor<64xf32>, f32
// FUSED: label = "decode_rows", layer = 0 : i64, maps = [#model.map<full>, #model.map<scalar>]

// If n is recomputed, its codes are not stored, but n is still rounded, so it
// has the bits that memory would have returned.
// AGAIN-LABEL: train.step accumulate batch 1 length 8
// AGAIN: model.rows(%{{.*}}, %{{.*}}) attributes {columns = 64 : i64, label = "rms_norm__encode_rows__decode_rows", {{.*}} -> tensor<1x8x64xbf16> {
// AGAIN: math.roundeven
// AGAIN: model.row_yield %{{.*}} : tensor<64xf32>
train.step accumulate batch 1 length 8 ["ids"] {
^bb0(%ids: tensor<1x8xi32>):
  %table = model.weight @table : tensor<32x64xbf16>
  %norm = model.weight @norm : tensor<64xbf16>
  %w = model.weight @w : tensor<64x64xbf16>
  %x = model.embedding %ids, %table : (tensor<1x8xi32>, tensor<32x64xbf16>) -> tensor<1x8x64xbf16>
  %n = model.rms_norm %x, %norm {epsilon = 1.0e-5 : f64, layer = 0 : i64} : (tensor<1x8x64xbf16>, tensor<64xbf16>) -> tensor<1x8x64xbf16>
  %g = model.linear %n, %w {layer = 0 : i64} : (tensor<1x8x64xbf16>, tensor<64x64xbf16>) -> tensor<1x8x64xbf16>
  %u = model.linear %n, %w {layer = 0 : i64} : (tensor<1x8x64xbf16>, tensor<64x64xbf16>) -> tensor<1x8x64xbf16>
  %s = model.glu silu %g, %u {layer = 0 : i64} : tensor<1x8x64xbf16>
  %z = model.linear %s, %w {layer = 0 : i64} : (tensor<1x8x64xbf16>, tensor<64x64xbf16>) -> tensor<1x8x64xbf16>
  %o = model.add %z, %x {layer = 0 : i64} : tensor<1x8x64xbf16>

  %dy = model.add %z, %z {phase = #model.phase<backward>} : tensor<1x8x64xbf16>
  %dz = train.linear_weight_grad %dy, %z {layer = 0 : i64, phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x8x64xbf16>, tensor<1x8x64xbf16>) -> tensor<64x64xf32>
  %dc = train.linear_weight_grad %dy, %s init %dz {layer = 0 : i64, phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x8x64xbf16>, tensor<1x8x64xbf16>, tensor<64x64xf32>) -> tensor<64x64xf32>
  train.accumulate @c, %dc {phase = #model.phase<backward>} : tensor<64x64xf32>
  %do = train.linear_weight_grad %dy, %o {layer = 0 : i64, phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x8x64xbf16>, tensor<1x8x64xbf16>) -> tensor<64x64xf32>
  train.accumulate @c, %do {phase = #model.phase<backward>} : tensor<64x64xf32>
  %dv = model.add %dy, %o {layer = 0 : i64, phase = #model.phase<backward>} : tensor<1x8x64xbf16>
  %ds = model.linear %dv, %w layout in_out {layer = 0 : i64, phase = #model.phase<backward>} : (tensor<1x8x64xbf16>, tensor<64x64xbf16>) -> tensor<1x8x64xbf16>
  %dg = model.glu silu %ds, %g {layer = 0 : i64, phase = #model.phase<backward>} : tensor<1x8x64xbf16>
  %da = train.linear_weight_grad %dg, %n {layer = 0 : i64, phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x8x64xbf16>, tensor<1x8x64xbf16>) -> tensor<64x64xf32>
  train.accumulate @a, %da {phase = #model.phase<backward>} : tensor<64x64xf32>
  %db = train.linear_weight_grad %ds, %n {layer = 0 : i64, phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x8x64xbf16>, tensor<1x8x64xbf16>) -> tensor<64x64xf32>
  %sum = model.add %db, %db {phase = #model.phase<backward>} : tensor<64x64xf32>
  train.accumulate @b, %sum {phase = #model.phase<backward>} : tensor<64x64xf32>
  %dx = model.add %dg, %x {phase = #model.phase<backward>} : tensor<1x8x64xbf16>
}

// m has readers in two blocks, so it is decoded once for each. k is not
// encoded, because dk is not only accumulated: dy is computed from it. thin has
// one value per row, so a code and a scale per row would be larger. Values of
// the evaluation are not saved.
// CHECK-LABEL: train.step accumulate batch 1 length 16
// CHECK: %[[M:.*]] = model.add
// CHECK-NEXT: %[[MC:.*]], %[[MS:.*]] = train.encode_rows %[[M]] : (tensor<1x8x64xf32>)
// CHECK-NOT: encode_rows
// CHECK: %[[M1:.*]] = train.decode_rows %[[MC]], %[[MS]] {layer = 1 : i64, phase = #model.phase<backward>}
// CHECK-NEXT: train.linear_weight_grad %{{.*}}, %[[M1]]
// CHECK: %[[M0:.*]] = train.decode_rows %[[MC]], %[[MS]] {layer = 0 : i64, phase = #model.phase<backward>}
// CHECK-NEXT: train.linear_weight_grad %{{.*}}, %[[M0]]
// CHECK-LABEL: train.step evaluate
// CHECK-NOT: encode_rows
train.step accumulate batch 1 length 16 ["ids"] {
^bb0(%ids: tensor<1x8xi32>):
  %a = model.weight @a : tensor<64x64xf32>
  %x = model.embedding %ids, %a : (tensor<1x8xi32>, tensor<64x64xf32>) -> tensor<1x8x64xf32>
  %m = model.add %x, %x : tensor<1x8x64xf32>
  %k = model.add %m, %x : tensor<1x8x64xf32>
  %y = model.linear %k, %a : (tensor<1x8x64xf32>, tensor<64x64xf32>) -> tensor<1x8x64xf32>
  %thin = model.rows(%y) attributes {columns = 1 : i64, maps = [#model.map<full>]} : (tensor<1x8x64xf32>) -> tensor<512x1xf32> {
  ^bb0(%0: tensor<1xf32>):
    %1 = arith.addf %0, %0 : tensor<1xf32>
    model.row_yield %1 : tensor<1xf32>
  }

  %dthin = train.linear_weight_grad %thin, %thin {phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<512x1xf32>, tensor<512x1xf32>) -> tensor<1x1xf32>
  %more = model.rows(%dthin) attributes {columns = 1 : i64, maps = [#model.map<global>], phase = #model.phase<backward>} : (tensor<1x1xf32>) -> tensor<4096x1xf32> {
  ^bb0(%0: f32):
    %1 = model.row_splat %0 : tensor<1xf32>
    model.row_yield %1 : tensor<1xf32>
  }
  train.accumulate @c, %more {phase = #model.phase<backward>} : tensor<4096x1xf32>
  %d1 = train.linear_weight_grad %y, %m {layer = 1 : i64, phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x8x64xf32>, tensor<1x8x64xf32>) -> tensor<64x64xf32>
  train.accumulate @a, %d1 {phase = #model.phase<backward>} : tensor<64x64xf32>
  %d0 = train.linear_weight_grad %y, %m {layer = 0 : i64, phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x8x64xf32>, tensor<1x8x64xf32>) -> tensor<64x64xf32>
  train.accumulate @b, %d0 {phase = #model.phase<backward>} : tensor<64x64xf32>
  %dk = train.linear_weight_grad %y, %k {phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x8x64xf32>, tensor<1x8x64xf32>) -> tensor<64x64xf32>
  %dy = model.linear %y, %dk layout in_out {phase = #model.phase<backward>} : (tensor<1x8x64xf32>, tensor<64x64xf32>) -> tensor<1x8x64xf32>
  %dw = train.linear_weight_grad %dy, %y {phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x8x64xf32>, tensor<1x8x64xf32>) -> tensor<64x64xf32>
  train.accumulate @c, %dw {phase = #model.phase<backward>} : tensor<64x64xf32>
}

train.step evaluate batch 1 length 8 ["ids"] {
^bb0(%ids: tensor<1x8xi32>):
  %a = model.weight @a : tensor<64x64xf32>
  %x = model.embedding %ids, %a : (tensor<1x8xi32>, tensor<64x64xf32>) -> tensor<1x8x64xf32>
  %m = model.add %x, %x : tensor<1x8x64xf32>
}
