// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --place-frozen-weights=shards=3 | FileCheck %s
// RUN: qlora-opt %s --place-frozen-weights="shards=3 offload-tables" | FileCheck %s --check-prefix=HOST
// RUN: qlora-opt %s --place-frozen-weights=offload-base | FileCheck %s --check-prefix=BASE
// RUN: qlora-opt %s --place-frozen-weights="shards=3 offload-base" | FileCheck %s --check-prefix=PARTS
// RUN: qlora-opt %s --place-frozen-weights="offload-base room=25728" | FileCheck %s --check-prefix=ROOM
// RUN: qlora-opt %s --place-frozen-weights="shards=3 room=58496" | FileCheck %s --check-prefix=KEPT
// RUN: qlora-opt %s --place-frozen-weights=shards=1 | FileCheck %s --check-prefix=ONE
// RUN: not qlora-opt %s --place-frozen-weights=shards=0 2>&1 | FileCheck %s --check-prefix=ZERO

// ONE-NOT: piece
// ONE-NOT: model.gather_weight

// ZERO: error: expects at least one rank to shard the base, but got 0

// Shards are a third of 9,344 bytes (4-bit codes and scales), of 65,536 bytes
// (a table) and of 32,768 bytes (bf16), rounded up to multiples of 64.
// Trainable parameters and vectors are unsharded.
// CHECK: module attributes {model.mesh = #model.mesh<fsdp = 3>, {{.*}}gathers = 6 {{.*}}piece_bytes = 39104 {{.*}}weights = 4
// CHECK-DAG: model.parameter @w0 {{.*}}piece = 3136
// CHECK-DAG: model.parameter @table {{.*}}piece = 21888
// CHECK-DAG: model.parameter @a : {{.*}}{init = "zero", trainable}
// CHECK-DAG: model.parameter @norm : tensor<128xf32> {file = "m.safetensors"}

// A weight is gathered once for the forward, and once for its layer's
// recomputation and backward, just before the first use.
// CHECK: train.step accumulate
// CHECK: %[[T:.*]] = model.gather_weight @table
// CHECK-NEXT: model.embedding %{{.*}}, %[[T]]
// CHECK: %[[W0:.*]] = model.gather_weight @w0 {layer = 0 : i64}
// CHECK-NEXT: model.linear %{{.*}}, %[[W0]] {layer = 0
// CHECK: %[[W1:.*]] = model.gather_weight @w1 {layer = 1 : i64}
// CHECK-NEXT: model.linear %{{.*}}, %[[W1]] {layer = 1
// CHECK: %[[B1:.*]] = model.gather_weight @w1 {layer = 1 : i64, phase = #model.phase<backward>}
// CHECK-NEXT: model.linear %{{.*}}, %[[B1]] layout in_out
// CHECK: %[[B0:.*]] = model.gather_weight @w0 {layer = 0 : i64, phase = #model.phase<recomputed>}
// CHECK-NEXT: model.linear %{{.*}}, %[[B0]] {layer = 0 : i64, phase = #model.phase<recomputed>}
// CHECK-NEXT: model.linear %{{.*}}, %[[B0]] layout in_out
// CHECK-NOT: model.weight @w

// HOST: model.parameter @table : tensor<128x128xf32> {file = "m.safetensors", on_host}
// HOST: %[[T:.*]] = model.weight @table
// HOST: model.embedding %{{.*}}, %[[T]]

// A base in host memory is unsharded: 65,536 bytes of the table, whose rows are
// read from the host, and 2 * 9,344 + 32,768 bytes of weights, which are copied
// to the GPU by the same ops that gather shards.
// BASE: module attributes {{.*}}gathers = 5 {{.*}}host_bytes = 116992 {{.*}}piece_bytes = 0
// BASE-NOT: #model.mesh
// BASE-DAG: model.parameter @w0 {{.*}}on_host
// BASE-DAG: model.parameter @table {{.*}}on_host
// BASE-DAG: model.parameter @norm : tensor<128xf32> {file = "m.safetensors"}
// BASE: %[[T:.*]] = model.weight @table
// BASE: model.embedding %{{.*}}, %[[T]]
// BASE: %[[W0:.*]] = model.gather_weight @w0 {layer = 0 : i64}
// BASE-NEXT: model.linear %{{.*}}, %[[W0]] {layer = 0
// BASE: %[[B1:.*]] = model.gather_weight @w1 {layer = 1 : i64, phase = #model.phase<backward>}
// BASE-NEXT: model.linear %{{.*}}, %[[B1]] layout in_out
// BASE-NOT: model.weight @w

// GPU memory suffices for half of the weights that would be copied: every
// second weight stays in GPU memory.
// ROOM: module attributes {{.*}}gathers = 3 {{.*}}staying_bytes = 9344
// ROOM-DAG: model.parameter @table {{.*}}on_host
// ROOM-DAG: model.parameter @w0 {{.*}}on_host
// ROOM-DAG: model.parameter @w1 : {{.*}} {file = "m.safetensors", stored_quantized}
// ROOM-DAG: model.parameter @head {{.*}}on_host
// ROOM: %[[W1:.*]] = model.weight @w1
// ROOM: model.linear %{{.*}}, %[[W1]] {layer = 1
// ROOM: model.linear %{{.*}}, %[[W1]] layout in_out

// With memory for half of the gathered bytes, some shards are gathered once.
// KEPT: module attributes {{.*}}gathers = 4 {{.*}}kept_bytes = 51456
// KEPT: %[[W0:.*]] = model.gather_weight @w0
// KEPT: %[[W1:.*]] = model.gather_weight @w1
// KEPT: model.linear %{{.*}}, %[[W1]] layout in_out
// KEPT: model.linear %{{.*}}, %[[W0]] layout in_out

// Each rank's host memory has the rank's shards, and the complete table, whose
// rows are read from the host.
// PARTS: module attributes {model.mesh = #model.mesh<fsdp = 3>, {{.*}}gathers = 5 {{.*}}host_bytes = 82752 {{.*}}piece_bytes = 0
// PARTS-DAG: model.parameter @w0 {{.*}}on_host, piece = 3136
// PARTS-DAG: model.parameter @table : tensor<128x128xf32> {file = "m.safetensors", on_host}
// PARTS: %[[T:.*]] = model.weight @table
// PARTS: model.embedding %{{.*}}, %[[T]]
// PARTS: model.gather_weight @w0 {layer = 0 : i64}

!nf4 = !model.quantized<nf4, 64, false>
model.parameter @table : tensor<128x128xf32> {file = "m.safetensors"}
model.parameter @norm : tensor<128xf32> {file = "m.safetensors"}
model.parameter @w0 : tensor<128x128x!nf4> {file = "m.safetensors", stored_quantized}
model.parameter @w1 : tensor<128x128x!nf4> {file = "m.safetensors", stored_quantized}
model.parameter @head : tensor<128x128xbf16> {file = "m.safetensors"}
model.parameter @a : tensor<8x128xf32> {init = "zero", trainable}

train.step accumulate batch 1 length 64 ["ids"] {
^bb0(%ids: tensor<1x64xi32>):
  %table = model.weight @table : tensor<128x128xf32>
  %norm = model.weight @norm : tensor<128xf32>
  %w0 = model.weight @w0 : tensor<128x128x!nf4>
  %w1 = model.weight @w1 : tensor<128x128x!nf4>
  %head = model.weight @head : tensor<128x128xbf16>
  %a = model.weight @a : tensor<8x128xf32>
  %x = model.embedding %ids, %table : (tensor<1x64xi32>, tensor<128x128xf32>) -> tensor<1x64x128xf32>
  %n = model.rms_norm %x, %norm {epsilon = 1.0e-5 : f64, layer = 0 : i64} : (tensor<1x64x128xf32>, tensor<128xf32>) -> tensor<1x64x128xf32>
  %y = model.linear %n, %w0 {layer = 0 : i64} : (tensor<1x64x128xf32>, tensor<128x128x!nf4>) -> tensor<1x64x128xf32>
  %z = model.linear %y, %w1 {layer = 1 : i64} : (tensor<1x64x128xf32>, tensor<128x128x!nf4>) -> tensor<1x64x128xf32>
  %t = model.linear %z, %head : (tensor<1x64x128xf32>, tensor<128x128xbf16>) -> tensor<1x64x128xf32>
  %xa = model.linear %t, %a : (tensor<1x64x128xf32>, tensor<8x128xf32>) -> tensor<1x64x8xf32>
  %d1 = model.linear %t, %w1 layout in_out {layer = 1 : i64, phase = #model.phase<backward>} : (tensor<1x64x128xf32>, tensor<128x128x!nf4>) -> tensor<1x64x128xf32>
  %y2 = model.linear %n, %w0 {layer = 0 : i64, phase = #model.phase<recomputed>} : (tensor<1x64x128xf32>, tensor<128x128x!nf4>) -> tensor<1x64x128xf32>
  %d0 = model.linear %d1, %w0 layout in_out {layer = 0 : i64, phase = #model.phase<backward>} : (tensor<1x64x128xf32>, tensor<128x128x!nf4>) -> tensor<1x64x128xf32>
  %da = train.linear_weight_grad %xa, %d0 {phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x64x8xf32>, tensor<1x64x128xf32>) -> tensor<8x128xf32>
  train.accumulate @a, %da {phase = #model.phase<backward>} : tensor<8x128xf32>
}
