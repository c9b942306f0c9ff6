// RUN: qlora-opt %s --rematerialize="budget=1" | FileCheck %s
// RUN: qlora-opt %s --rematerialize="budget=1" --plan-dequant="form=per-use" | FileCheck %s --check-prefix=DECODE

// Four blocks x -> x + f(swiglu(g)), g = x W', where g is four times as wide as
// x and the gradient of a block reads x and g. x0 and x1 are not saved. Block 1
// needs x1, so the embedding and block 0 are recomputed. x0 then stays for the
// gradient of block 0, but g of block 0 is recomputed a second time.

// CHECK-LABEL: train.step accumulate{{.*}} times = 2 : i64
// CHECK: %[[W:.*]] = model.weight @up0
// CHECK: %[[X0:.*]] = model.embedding {{.*}} {phase = #model.phase<recomputed>}
// CHECK-NEXT: %[[G0:.*]] = model.linear %[[X0]], %[[W]] {layer = 0 : i64, phase = #model.phase<recomputed>}
// CHECK-NEXT: %[[S0:.*]] = model.glu silu %[[G0]], %[[G0]] {{.*}}phase = #model.phase<recomputed>
// CHECK-NEXT: %[[Y0:.*]] = model.linear %[[S0]], %[[W]] layout in_out {{.*}}phase = #model.phase<recomputed>
// CHECK-NEXT: %[[X1:.*]] = model.add %[[X0]], %[[Y0]] {{.*}}phase = #model.phase<recomputed>
// CHECK-NEXT: %[[G1:.*]] = model.linear %[[X1]], {{.*}}phase = #model.phase<recomputed>
// CHECK-NEXT: model.glu silu %{{.*}}, %[[G1]] {layer = 1 : i64, phase = #model.phase<backward>}
// CHECK: model.linear %{{.*}}, %[[W]] {layer = 0 : i64, phase = #model.phase<backward>}
// CHECK-NEXT: %[[AGAIN:.*]] = model.linear %[[X0]], %[[W]] {layer = 0 : i64, phase = #model.phase<recomputed>}
// CHECK-NEXT: model.glu silu %{{.*}}, %[[AGAIN]] {layer = 0 : i64, phase = #model.phase<backward>}
// CHECK-NOT: phase = #model.phase<recomputed>

// The decoded W' is freed between the two recomputations.
// DECODE-LABEL: train.step accumulate
// DECODE: %[[W:.*]] = model.weight @up0
// DECODE: %[[N1:.*]] = train.decode %[[W]] {{.*}}phase = #model.phase<recomputed>
// DECODE-NEXT: model.linear %{{.*}}, %[[N1]] {{.*}}phase = #model.phase<recomputed>
// DECODE: model.linear %{{.*}}, %[[N1]] layout in_out {{.*}}phase = #model.phase<recomputed>
// DECODE: %[[N2:.*]] = train.decode %[[W]] {{.*}}phase = #model.phase<backward>
// DECODE-NEXT: model.linear %{{.*}}, %[[N2]] {layer = 0 : i64, phase = #model.phase<backward>}
// DECODE-NEXT: model.linear %{{.*}}, %[[N2]] {{.*}}phase = #model.phase<recomputed>
// DECODE-NOT: %[[N1]]

model.parameter @table : tensor<32x256xbf16> {file = "m.safetensors"}
model.parameter @up0 : tensor<1024x256x!model.quantized<nf4, 64, true>> {file = "m.safetensors", file_type = bf16}
model.parameter @up1 : tensor<1024x256x!model.quantized<nf4, 64, true>> {file = "m.safetensors", file_type = bf16}
model.parameter @up2 : tensor<1024x256x!model.quantized<nf4, 64, true>> {file = "m.safetensors", file_type = bf16}
model.parameter @up3 : tensor<1024x256x!model.quantized<nf4, 64, true>> {file = "m.safetensors", file_type = bf16}

train.step accumulate batch 1 length 64 ["ids"] {
^bb0(%ids: tensor<1x64xi32>):
  %table = model.weight @table : tensor<32x256xbf16>
  %up0 = model.weight @up0 : tensor<1024x256x!model.quantized<nf4, 64, true>>
  %up1 = model.weight @up1 : tensor<1024x256x!model.quantized<nf4, 64, true>>
  %up2 = model.weight @up2 : tensor<1024x256x!model.quantized<nf4, 64, true>>
  %up3 = model.weight @up3 : tensor<1024x256x!model.quantized<nf4, 64, true>>
  %x0 = model.embedding %ids, %table : (tensor<1x64xi32>, tensor<32x256xbf16>) -> tensor<1x64x256xf32>
  %g0 = model.linear %x0, %up0 {layer = 0 : i64} : (tensor<1x64x256xf32>, tensor<1024x256x!model.quantized<nf4, 64, true>>) -> tensor<1x64x1024xf32>
  %s0 = model.glu silu %g0, %g0 {layer = 0 : i64} : tensor<1x64x1024xf32>
  %y0 = model.linear %s0, %up0 layout in_out {layer = 0 : i64} : (tensor<1x64x1024xf32>, tensor<1024x256x!model.quantized<nf4, 64, true>>) -> tensor<1x64x256xf32>
  %x1 = model.add %x0, %y0 {layer = 0 : i64} : tensor<1x64x256xf32>
  %g1 = model.linear %x1, %up1 {layer = 1 : i64} : (tensor<1x64x256xf32>, tensor<1024x256x!model.quantized<nf4, 64, true>>) -> tensor<1x64x1024xf32>
  %s1 = model.glu silu %g1, %g1 {layer = 1 : i64} : tensor<1x64x1024xf32>
  %y1 = model.linear %s1, %up1 layout in_out {layer = 1 : i64} : (tensor<1x64x1024xf32>, tensor<1024x256x!model.quantized<nf4, 64, true>>) -> tensor<1x64x256xf32>
  %x2 = model.add %x1, %y1 {layer = 1 : i64} : tensor<1x64x256xf32>
  %g2 = model.linear %x2, %up2 {layer = 2 : i64} : (tensor<1x64x256xf32>, tensor<1024x256x!model.quantized<nf4, 64, true>>) -> tensor<1x64x1024xf32>
  %s2 = model.glu silu %g2, %g2 {layer = 2 : i64} : tensor<1x64x1024xf32>
  %y2 = model.linear %s2, %up2 layout in_out {layer = 2 : i64} : (tensor<1x64x1024xf32>, tensor<1024x256x!model.quantized<nf4, 64, true>>) -> tensor<1x64x256xf32>
  %x3 = model.add %x2, %y2 {layer = 2 : i64} : tensor<1x64x256xf32>
  %g3 = model.linear %x3, %up3 {layer = 3 : i64} : (tensor<1x64x256xf32>, tensor<1024x256x!model.quantized<nf4, 64, true>>) -> tensor<1x64x1024xf32>
  %s3 = model.glu silu %g3, %g3 {layer = 3 : i64} : tensor<1x64x1024xf32>
  %y3 = model.linear %s3, %up3 layout in_out {layer = 3 : i64} : (tensor<1x64x1024xf32>, tensor<1024x256x!model.quantized<nf4, 64, true>>) -> tensor<1x64x256xf32>
  %x4 = model.add %x3, %y3 {layer = 3 : i64} : tensor<1x64x256xf32>
  %z = model.add %x4, %x4 : tensor<1x64x256xf32>

  %d4 = model.add %z, %z {phase = #model.phase<backward>} : tensor<1x64x256xf32>
  %ds3 = model.linear %d4, %up3 {layer = 3 : i64, phase = #model.phase<backward>} : (tensor<1x64x256xf32>, tensor<1024x256x!model.quantized<nf4, 64, true>>) -> tensor<1x64x1024xf32>
  %dg3 = model.glu silu %ds3, %g3 {layer = 3 : i64, phase = #model.phase<backward>} : tensor<1x64x1024xf32>
  %dy3 = model.linear %dg3, %up3 layout in_out {layer = 3 : i64, phase = #model.phase<backward>} : (tensor<1x64x1024xf32>, tensor<1024x256x!model.quantized<nf4, 64, true>>) -> tensor<1x64x256xf32>
  %d3 = model.add %dy3, %x3 {layer = 3 : i64, phase = #model.phase<backward>} : tensor<1x64x256xf32>
  %ds2 = model.linear %d3, %up2 {layer = 2 : i64, phase = #model.phase<backward>} : (tensor<1x64x256xf32>, tensor<1024x256x!model.quantized<nf4, 64, true>>) -> tensor<1x64x1024xf32>
  %dg2 = model.glu silu %ds2, %g2 {layer = 2 : i64, phase = #model.phase<backward>} : tensor<1x64x1024xf32>
  %dy2 = model.linear %dg2, %up2 layout in_out {layer = 2 : i64, phase = #model.phase<backward>} : (tensor<1x64x1024xf32>, tensor<1024x256x!model.quantized<nf4, 64, true>>) -> tensor<1x64x256xf32>
  %d2 = model.add %dy2, %x2 {layer = 2 : i64, phase = #model.phase<backward>} : tensor<1x64x256xf32>
  %ds1 = model.linear %d2, %up1 {layer = 1 : i64, phase = #model.phase<backward>} : (tensor<1x64x256xf32>, tensor<1024x256x!model.quantized<nf4, 64, true>>) -> tensor<1x64x1024xf32>
  %dg1 = model.glu silu %ds1, %g1 {layer = 1 : i64, phase = #model.phase<backward>} : tensor<1x64x1024xf32>
  %dy1 = model.linear %dg1, %up1 layout in_out {layer = 1 : i64, phase = #model.phase<backward>} : (tensor<1x64x1024xf32>, tensor<1024x256x!model.quantized<nf4, 64, true>>) -> tensor<1x64x256xf32>
  %d1 = model.add %dy1, %x1 {layer = 1 : i64, phase = #model.phase<backward>} : tensor<1x64x256xf32>
  %ds0 = model.linear %d1, %up0 {layer = 0 : i64, phase = #model.phase<backward>} : (tensor<1x64x256xf32>, tensor<1024x256x!model.quantized<nf4, 64, true>>) -> tensor<1x64x1024xf32>
  %dg0 = model.glu silu %ds0, %g0 {layer = 0 : i64, phase = #model.phase<backward>} : tensor<1x64x1024xf32>
  %dy0 = model.linear %dg0, %up0 layout in_out {layer = 0 : i64, phase = #model.phase<backward>} : (tensor<1x64x1024xf32>, tensor<1024x256x!model.quantized<nf4, 64, true>>) -> tensor<1x64x256xf32>
  %d0 = model.add %dy0, %x0 {layer = 0 : i64, phase = #model.phase<backward>} : tensor<1x64x256xf32>
}
