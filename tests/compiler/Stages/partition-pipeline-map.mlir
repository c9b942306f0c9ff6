// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --partition-pipeline='stages=2 stage=0' | FileCheck %s --check-prefix=THREE
// RUN: qlora-opt %s --partition-pipeline='stages=2 stage=0 speeds=1,3' | FileCheck %s --check-prefix=ONE
// RUN: qlora-opt %s --partition-pipeline='stages=2 stage=0 device-map=sequential memory-limit=1500' | FileCheck %s --check-prefix=THREE
// RUN: qlora-opt %s --partition-pipeline='stages=3 stage=0 device-map=sequential memory-limit=1000000' | FileCheck %s --check-prefix=TWO
// RUN: qlora-opt %s --partition-pipeline='stages=2 stage=0 device-map={{"m.table":0,"m.layers.0":0,"m.layers":1,"head":1}}' | FileCheck %s --check-prefix=ONE
// RUN: qlora-opt %s --partition-pipeline='stages=2 stage=0 device-map={{"":0,"m.layers.3":1,"head":1}}' | FileCheck %s --check-prefix=THREE
// RUN: not qlora-opt %s --partition-pipeline='stages=2 stage=0 device-map={{"m.table":0,"m.layers.0":0,"m.layers.2":1}}' 2>&1 | FileCheck %s --check-prefix=MISSING
// RUN: not qlora-opt %s --partition-pipeline='stages=2 stage=0 device-map={{"":0,"m.layers.1":1}}' 2>&1 | FileCheck %s --check-prefix=BACK
// RUN: not qlora-opt %s --partition-pipeline='stages=2 stage=0 device-map={{"":0,"m.layers.3.up":1}}' 2>&1 | FileCheck %s --check-prefix=DIVIDED
// RUN: not qlora-opt %s --partition-pipeline='stages=2 stage=0 device-map={{"":0,"m.layers.3":1}}' 2>&1 | FileCheck %s --check-prefix=HEAD
// RUN: not qlora-opt %s --partition-pipeline='stages=2 stage=0 device-map={{"":0,"head":1}}' 2>&1 | FileCheck %s --check-prefix=EMPTY

// Layers have 256 bytes and the last layer 512; the table and the LM head have
// 512 each.
// ONE: model.linear {{.*}} {layer = 0 : i64}
// ONE-NOT: layer = 1
// TWO: model.linear {{.*}} {layer = 1 : i64}
// TWO-NOT: layer = 2
// THREE: model.linear {{.*}} {layer = 2 : i64}
// THREE-NOT: layer = 3

// MISSING: error: --device-map has no device for 'm.layers.1.w'; add its module, or "" for all other modules
// BACK: error: --device-map has layer 2 on device 0; use devices 0, 1, 2 and so on in the order of layers
// DIVIDED: error: --device-map has 'm.layers.3.up' on device 1 and other weights of layer 3 on device 0; put each layer on one device
// HEAD: error: --device-map has 'head' on device 0, but it is used on device 1; put modules before the layers on the first device, modules after them on the last
// EMPTY: error: --device-map has layers on 1 of its 2 devices; put at least one on each

model.parameter @m.table : tensor<16x8xf32> {file = "m.safetensors"}
model.parameter @m.layers.0.w : tensor<8x8xf32> {file = "m.safetensors"}
model.parameter @m.layers.1.w : tensor<8x8xf32> {file = "m.safetensors"}
model.parameter @m.layers.2.w : tensor<8x8xf32> {file = "m.safetensors"}
model.parameter @m.layers.3.w : tensor<8x8xf32> {file = "m.safetensors"}
model.parameter @m.layers.3.up : tensor<8x8xf32> {file = "m.safetensors"}
model.parameter @head : tensor<16x8xf32> {file = "m.safetensors"}

func.func @f(%ids: tensor<2x4xi32> {model.input = "ids"},
             %targets: tensor<2x4xi32> {model.input = "targets"})
    -> (tensor<1xf32>, tensor<1xf32>, tensor<2x4xi32>)
    attributes {model.batch = 2 : i64, model.length = 4 : i64} {
  %table = model.weight @m.table : tensor<16x8xf32>
  %x = model.embedding %ids, %table : (tensor<2x4xi32>, tensor<16x8xf32>) -> tensor<2x4x8xf32>
  %w0 = model.weight @m.layers.0.w : tensor<8x8xf32>
  %x0 = model.linear %x, %w0 {layer = 0 : i64} : (tensor<2x4x8xf32>, tensor<8x8xf32>) -> tensor<2x4x8xf32>
  %w1 = model.weight @m.layers.1.w : tensor<8x8xf32>
  %x1 = model.linear %x0, %w1 {layer = 1 : i64} : (tensor<2x4x8xf32>, tensor<8x8xf32>) -> tensor<2x4x8xf32>
  %w2 = model.weight @m.layers.2.w : tensor<8x8xf32>
  %x2 = model.linear %x1, %w2 {layer = 2 : i64} : (tensor<2x4x8xf32>, tensor<8x8xf32>) -> tensor<2x4x8xf32>
  %w3 = model.weight @m.layers.3.w : tensor<8x8xf32>
  %x3 = model.linear %x2, %w3 {layer = 3 : i64} : (tensor<2x4x8xf32>, tensor<8x8xf32>) -> tensor<2x4x8xf32>
  %up = model.weight @m.layers.3.up : tensor<8x8xf32>
  %x4 = model.linear %x3, %up {layer = 3 : i64} : (tensor<2x4x8xf32>, tensor<8x8xf32>) -> tensor<2x4x8xf32>
  %head = model.weight @head : tensor<16x8xf32>
  %loss, %count, %correct = model.head_loss %x4, %head, %targets : (tensor<2x4x8xf32>, tensor<16x8xf32>, tensor<2x4xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x4xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<2x4xi32>
}
