// RUN: qlora-opt %s --plan-dequant="form=tiled" | FileCheck %s --check-prefix=PANEL
// RUN: qlora-opt %s --plan-dequant="form=per-use" | FileCheck %s --check-prefix=SCRATCH
// RUN: qlora-opt %s --plan-dequant="target=cuda device-profile=%S/../Inputs/slow-copy-gpu.json" | FileCheck %s --check-prefix=SCRATCH
// RUN: qlora-opt %s --plan-dequant="form=tiled target=cuda" | FileCheck %s --check-prefix=PANEL
// RUN: qlora-opt %s --plan-dequant="form=once" | FileCheck %s --check-prefix=RESIDENT
// RUN: qlora-opt %s --plan-dequant="device-profile=%S/../Inputs/slow-decode.json" | FileCheck %s --check-prefix=SLOW
// RUN: qlora-opt %s --plan-dequant="device-profile=%S/../Inputs/slow-copy.json" | FileCheck %s --check-prefix=PANEL
// RUN: qlora-opt %s --plan-dequant="device-profile=%S/../Inputs/slow-decode.json resident-bytes=60000" | FileCheck %s --check-prefix=ROOM
// RUN: qlora-opt %s --plan-dequant="device-profile=%S/../Inputs/slow-decode.json" --remark-policy=all --remarks-filter=plan-dequant 2>&1 -o /dev/null | FileCheck %s --check-prefix=REMARK

// @w is used in the forward, and twice within block 0's backward. @b is stored
// in bf16, @a in f32. @shared is also an embedding, so it must not change.

// PANEL-NOT: train.decode
// PANEL: model.parameter @w : tensor<128x128x!model.quantized<nf4, 64, true>>
// PANEL-NOT: train.decode

// @w has one decode in the forward and one in the backward of block 0. There,
// the recomputed forward and the gradient share it. A decode has the attributes
// of its first reader.
// SCRATCH-LABEL: train.step accumulate
// SCRATCH: %[[W:.*]] = model.weight @w
// SCRATCH: %[[N1:.*]] = train.decode %[[W]] {layer = 0 : i64} : {{.*}} -> tensor<128x128xf32>
// SCRATCH-NEXT: model.linear %{{.*}}, %[[N1]]
// SCRATCH: %[[B:.*]] = train.decode %{{.*}} : (tensor<128x128xbf16>) -> tensor<128x128xf32>
// SCRATCH-NEXT: model.linear %{{.*}}, %[[B]]
// SCRATCH: %[[N2:.*]] = train.decode %[[W]] {layer = 0 : i64, phase = #model.phase<backward>}
// SCRATCH-NEXT: model.linear %{{.*}}, %[[N2]]
// SCRATCH-NOT: train.decode
// SCRATCH: model.linear %{{.*}}, %[[N2]] layout in_out

// The parameter changes type; its 4 bits and the type in the file are kept.
// RESIDENT-DAG: model.parameter @w : tensor<128x128xf32> {file = "m.safetensors", file_type = bf16, quantized = !model.quantized<nf4, 64, true>}
// RESIDENT-DAG: model.parameter @b : tensor<128x128xf32> {file = "m.safetensors", file_type = bf16}
// RESIDENT-DAG: model.parameter @stored : tensor<128x128xf32> {file = "m.safetensors", file_type = !model.quantized<nf4, 64, false>, quantized = !model.quantized<nf4, 64, false>, stored_quantized}
// RESIDENT-DAG: model.parameter @shared : tensor<128x128xbf16>
// RESIDENT: model.weight @w : tensor<128x128xf32>
// RESIDENT-NOT: train.decode

// If decoding is slow compared with copying, two uses share one decode; a
// single use stays tiled.
// SLOW-LABEL: train.step accumulate
// SLOW: %[[W:.*]] = model.weight @w
// SLOW-NOT: train.decode
// SLOW: %[[N:.*]] = train.decode %[[W]] {layer = 0 : i64, phase = #model.phase<backward>}
// SLOW-NOT: train.decode
// SLOW: model.linear %{{.*}}, %[[N]] layout in_out

// @w has 65,536 bytes in f32 and 9,664 bytes in NF4, with all tables. So
// decoding @w once, for its three uses, needs 55,872 additional bytes of the
// 60,000 that are allowed. The rest is too small for @stored, which is used
// once.
// ROOM-DAG: model.parameter @w : tensor<128x128xf32>
// ROOM-DAG: model.parameter @stored : tensor<128x128x!model.quantized<nf4, 64, false>>
// ROOM-NOT: train.decode

// REMARK: remark: [Passed] tiled | Category:plan-dequant | Remark="accumulate 64, forward, 1 uses: tiled (us: tiled
// REMARK: remark: [Passed] per-use | Category:plan-dequant | Remark="accumulate 64, backward, 2 uses: per-use (us: tiled {{.*}}, per-use {{.*}}, once {{.*}} bytes more)

model.parameter @w : tensor<128x128x!model.quantized<nf4, 64, true>> {file = "m.safetensors", file_type = bf16, quantized = !model.quantized<nf4, 64, true>}
model.parameter @b : tensor<128x128xbf16> {file = "m.safetensors"}
model.parameter @stored : tensor<128x128x!model.quantized<nf4, 64, false>> {file = "m.safetensors", stored_quantized}
model.parameter @shared : tensor<128x128xbf16> {file = "m.safetensors"}
model.parameter @a : tensor<8x128xf32> {init = "zero", trainable}

train.step accumulate batch 1 length 64 ["ids"] {
^bb0(%ids: tensor<1x64xi32>):
  %w = model.weight @w : tensor<128x128x!model.quantized<nf4, 64, true>>
  %b = model.weight @b : tensor<128x128xbf16>
  %stored = model.weight @stored : tensor<128x128x!model.quantized<nf4, 64, false>>
  %shared = model.weight @shared : tensor<128x128xbf16>
  %a = model.weight @a : tensor<8x128xf32>
  %x = model.embedding %ids, %shared : (tensor<1x64xi32>, tensor<128x128xbf16>) -> tensor<1x64x128xf32>
  %y = model.linear %x, %w {layer = 0 : i64} : (tensor<1x64x128xf32>, tensor<128x128x!model.quantized<nf4, 64, true>>) -> tensor<1x64x128xf32>
  %z = model.linear %y, %b : (tensor<1x64x128xf32>, tensor<128x128xbf16>) -> tensor<1x64x128xf32>
  %s = model.linear %z, %stored : (tensor<1x64x128xf32>, tensor<128x128x!model.quantized<nf4, 64, false>>) -> tensor<1x64x128xf32>
  %t = model.linear %s, %shared : (tensor<1x64x128xf32>, tensor<128x128xbf16>) -> tensor<1x64x128xf32>
  %xa = model.linear %t, %a : (tensor<1x64x128xf32>, tensor<8x128xf32>) -> tensor<1x64x8xf32>
  %y2 = model.linear %x, %w {layer = 0 : i64, phase = #model.phase<backward>} : (tensor<1x64x128xf32>, tensor<128x128x!model.quantized<nf4, 64, true>>) -> tensor<1x64x128xf32>
  %dx = model.linear %y2, %w layout in_out {layer = 0 : i64, phase = #model.phase<backward>} : (tensor<1x64x128xf32>, tensor<128x128x!model.quantized<nf4, 64, true>>) -> tensor<1x64x128xf32>
  %da = train.linear_weight_grad %xa, %dx {phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x64x8xf32>, tensor<1x64x128xf32>) -> tensor<8x128xf32>
  train.accumulate @a, %da {phase = #model.phase<backward>} : tensor<8x128xf32>
}
