// SPDX-License-Identifier: MIT

// Results of matmuls of the same x are offloaded together or not at all.
// Offloading does not change which siblings become one GEMM.

// RUN: qlora-opt %s --offload-activations=target=cuda --concat-siblings | FileCheck %s --check-prefixes=JOINED,BOTH
// RUN: qlora-opt %s --offload-activations="target=cuda values=none" --concat-siblings | FileCheck %s --check-prefix=JOINED
// RUN: qlora-opt %s --offload-activations="target=cuda device-profile=%S/../Inputs/slow-bus-gpu.json" | FileCheck %s --check-prefix=NEITHER

// The copies of gate and up take 66 us each on the slow bus, and the forward of
// layer 0 takes 104 us. One copy would be hidden, but the joined buffer would
// stay in GPU memory.
// BOTH: candidates = 2 : i64, copied = 2 : i64
// NEITHER: candidates = 2 : i64, copied = 0 : i64
// NEITHER-NOT: train.copy_to_host

// Gate and up are saved for the backward; q is not, so it stays separate.
// JOINED: %[[GATE_UP:.*]] = model.concat %{{.*}}, %{{.*}} {layer = 0 : i64, rows} : {{.*}} -> tensor<512x256xf32>
// JOINED: model.linear %{{.*}}, %[[GATE_UP]] {layer = 0 : i64, module = "gate"}
// JOINED-NOT: model.concat
// BOTH-COUNT-2: train.copy_to_host %{{.*}} behind 1 {layer = 0 : i64}
// JOINED: model.linear {{.*}} {layer = 0 : i64, module = "q"}
// JOINED-NOT: model.concat

model.parameter @table : tensor<32x256xbf16> {file = "m.safetensors"}
model.parameter @gate : tensor<256x256xbf16> {file = "m.safetensors"}
model.parameter @up : tensor<256x256xbf16> {file = "m.safetensors"}
model.parameter @q : tensor<32x256xbf16> {file = "m.safetensors"}
model.parameter @a : tensor<256x256xf32> {init = "zero", trainable}

train.step accumulate batch 1 length 64 ["ids"] {
^bb0(%ids: tensor<1x64xi32>):
  %table = model.weight @table : tensor<32x256xbf16>
  %a = model.weight @a : tensor<256x256xf32>
  %x = model.embedding %ids, %table : (tensor<1x64xi32>, tensor<32x256xbf16>) -> tensor<1x64x256xf32>
  %wg = model.weight @gate : tensor<256x256xbf16>
  %ng = train.decode %wg {layer = 0 : i64} : (tensor<256x256xbf16>) -> tensor<256x256xf32>
  %gate = model.linear %x, %ng {layer = 0 : i64, module = "gate"} : (tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %wu = model.weight @up : tensor<256x256xbf16>
  %nu = train.decode %wu {layer = 0 : i64} : (tensor<256x256xbf16>) -> tensor<256x256xf32>
  %up = model.linear %x, %nu {layer = 0 : i64, module = "up"} : (tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %wq = model.weight @q : tensor<32x256xbf16>
  %nq = train.decode %wq {layer = 0 : i64} : (tensor<32x256xbf16>) -> tensor<32x256xf32>
  %q = model.linear %x, %nq {layer = 0 : i64, module = "q"} : (tensor<1x64x256xf32>, tensor<32x256xf32>) -> tensor<1x64x32xf32>
  %y = model.glu silu %gate, %up {layer = 0 : i64} : tensor<1x64x256xf32>

  %d1 = model.add %y, %y {layer = 1 : i64, phase = #model.phase<backward>} : tensor<1x64x256xf32>
  %d2 = model.linear %d1, %a layout in_out {layer = 1 : i64, phase = #model.phase<backward>} : (tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %d3 = model.linear %d2, %a layout in_out {layer = 1 : i64, phase = #model.phase<backward>} : (tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %d4 = model.linear %d3, %a layout in_out {layer = 1 : i64, phase = #model.phase<backward>} : (tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %dg = model.glu silu %gate, %d4 {layer = 0 : i64, phase = #model.phase<backward>} : tensor<1x64x256xf32>
  %du = model.glu silu %up, %d4 {layer = 0 : i64, phase = #model.phase<backward>} : tensor<1x64x256xf32>
  %da = train.linear_weight_grad %dg, %du {layer = 0 : i64, phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x64x256xf32>, tensor<1x64x256xf32>) -> tensor<256x256xf32>
  train.accumulate @a, %da {phase = #model.phase<backward>} : tensor<256x256xf32>
}
