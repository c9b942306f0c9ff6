// SPDX-License-Identifier: MIT

// Which forward values are offloaded to host memory, and when they are copied.

// RUN: qlora-opt %s --offload-activations=target=cuda | FileCheck %s
// RUN: qlora-opt %s --offload-activations="target=cuda values=all" | FileCheck %s --check-prefix=ALL
// RUN: qlora-opt %s --offload-activations="target=cuda blocks" | FileCheck %s --check-prefix=BLOCKS
// RUN: qlora-opt %s --offload-activations="target=cuda device-profile=%S/../Inputs/slow-bus-gpu.json" | FileCheck %s --check-prefix=SLOW
// RUN: qlora-opt %s --offload-activations="target=cuda values=crossing device-profile=%S/../Inputs/slow-bus-gpu.json" | FileCheck %s --check-prefix=CROSSING
// RUN: qlora-opt %s --offload-activations="target=cuda values=none" | FileCheck %s --check-prefix=NONE
// RUN: qlora-opt %s --offload-activations="target=cuda blocks" --rematerialize=blocks | FileCheck %s --check-prefix=AGAIN
// RUN: qlora-opt %s --offload-activations="target=cuda weights=1" | FileCheck %s --check-prefix=WEIGHTS
// RUN: qlora-opt %s --offload-activations="target=cuda weights=2" | FileCheck %s --check-prefix=HALVES
// RUN: not qlora-opt %s --offload-activations=target=cpu 2>&1 | FileCheck %s --check-prefix=CPU
// RUN: not qlora-opt %s --offload-activations="target=cuda values=some" 2>&1 | FileCheck %s --check-prefix=SOME

// If the bus transfers each layer's weights, it has no time for activations. If
// it transfers half of the weights (two ranks), two copies are still hidden.
// WEIGHTS-NOT: train.copy_to_host
// HALVES-COUNT-2: train.copy_to_host
// HALVES-NOT: train.copy_to_host

// Four values are offloaded: x0 and x1, which cross layers, and n0 and n1. The
// values that layer 2 reads (x2, n2) are not, because the backward needs them
// first. A copy takes less time than the ops of a layer, so all are hidden.
//
// * A copy to the host comes after the row ops that compute and read the value,
//   so that these can be fused.
// * After a copy to the host, later ops do not wait for this copy or for the
//   last one before it (`behind 1`). They wait for all older copies.
// * A copy back starts one layer before the layer that reads the value, in the
//   order of the reads.
// CHECK: train.step accumulate {{.*}}"offload-activations" = {batch = 1 : i64, bytes = 262144 : i64, candidates = 4 : i64, copied = 4 : i64, crossing = 2 : i64, length = 64 : i64, values = "hidden"}
// CHECK: %[[X0:.*]] = model.embedding
// CHECK-NEXT: %[[N0:.*]] = model.rms_norm %[[X0]]
// CHECK-NEXT: %[[HX0:.*]] = train.copy_to_host %[[X0]] behind 1 : tensor<1x64x256xf32>
// CHECK-NEXT: %[[HN0:.*]] = train.copy_to_host %[[N0]] behind 1 {layer = 0 : i64}
// CHECK-NEXT: model.linear %[[N0]]
// CHECK-NEXT: %[[X1:.*]] = model.add %[[X0]]
// CHECK-NEXT: %[[N1:.*]] = model.rms_norm %[[X1]]
// CHECK-NEXT: %[[HX1:.*]] = train.copy_to_host %[[X1]] behind 1
// CHECK-NEXT: %[[HN1:.*]] = train.copy_to_host %[[N1]] behind 1
// CHECK-NOT: copy_to_host
// CHECK: model.add {{.*}}phase = #model.phase<backward>
// CHECK-NEXT: %[[BN1:.*]] = train.copy_from_host %[[HN1]] {phase = #model.phase<backward>}
// CHECK-NEXT: %[[BX1:.*]] = train.copy_from_host %[[HX1]] {phase = #model.phase<backward>}
// CHECK-NEXT: train.linear_weight_grad {{.*}}layer = 2
// CHECK: %[[BN0:.*]] = train.copy_from_host %[[HN0]]
// CHECK-NEXT: %[[BX0:.*]] = train.copy_from_host %[[HX0]]
// CHECK-NEXT: train.linear_weight_grad %{{.*}}, %[[BN1]]
// CHECK: model.add %{{.*}}, %[[BX1]]
// CHECK-NEXT: train.linear_weight_grad %{{.*}}, %[[BN0]]
// CHECK: model.add %{{.*}}, %[[BX0]]

// Values that layer 2 reads are offloaded too.
// ALL: candidates = 6 : i64, copied = 6 : i64, crossing = 3 : i64

// Values inside a layer are recomputed from offloaded values. Offloaded values
// are not recomputed.
// BLOCKS: candidates = 2 : i64, copied = 2 : i64, crossing = 2 : i64
// AGAIN: %[[HX1:.*]] = train.copy_to_host {{.*}}{layer = 0 : i64}
// AGAIN: %[[BX1:.*]] = train.copy_from_host %[[HX1]]
// AGAIN: %[[BX0:.*]] = train.copy_from_host
// AGAIN: %[[N1:.*]] = model.rms_norm %[[BX1]], {{.*}}phase = #model.phase<recomputed>
// AGAIN-NEXT: train.linear_weight_grad %{{.*}}, %[[N1]]
// AGAIN: %[[N0:.*]] = model.rms_norm %[[BX0]], {{.*}}phase = #model.phase<recomputed>
// AGAIN-NEXT: train.linear_weight_grad %{{.*}}, %[[N0]]

// A bus of 1 GB/s takes 66 us for each value, and the matmul of a layer 49 us.
// Values that cross layers are copied because the option requests it.
// SLOW: candidates = 4 : i64, copied = 0 : i64
// SLOW-NOT: train.copy
// CROSSING: candidates = 2 : i64, copied = 2 : i64, crossing = 2 : i64
// NONE-NOT: offload-activations
// NONE-NOT: train.copy

// CPU: error: expects a target with separate memory, but 'cpu' uses host memory
// SOME: error: expects none, hidden, crossing or all as values, but got 'some'

model.parameter @table : tensor<32x256xbf16> {file = "m.safetensors"}
model.parameter @norm : tensor<256xf32> {file = "m.safetensors"}
model.parameter @a : tensor<256x256xf32> {init = "zero", trainable}

train.step accumulate batch 1 length 64 ["ids"] {
^bb0(%ids: tensor<1x64xi32>):
  %table = model.weight @table : tensor<32x256xbf16>
  %norm = model.weight @norm : tensor<256xf32>
  %a = model.weight @a : tensor<256x256xf32>
  %x0 = model.embedding %ids, %table : (tensor<1x64xi32>, tensor<32x256xbf16>) -> tensor<1x64x256xf32>
  %n0 = model.rms_norm %x0, %norm {epsilon = 1.0e-5 : f64, layer = 0 : i64} : (tensor<1x64x256xf32>, tensor<256xf32>) -> tensor<1x64x256xf32>
  %y0 = model.linear %n0, %a {layer = 0 : i64} : (tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %x1 = model.add %x0, %y0 {layer = 0 : i64} : tensor<1x64x256xf32>
  %n1 = model.rms_norm %x1, %norm {epsilon = 1.0e-5 : f64, layer = 1 : i64} : (tensor<1x64x256xf32>, tensor<256xf32>) -> tensor<1x64x256xf32>
  %y1 = model.linear %n1, %a {layer = 1 : i64} : (tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %x2 = model.add %x1, %y1 {layer = 1 : i64} : tensor<1x64x256xf32>
  %n2 = model.rms_norm %x2, %norm {epsilon = 1.0e-5 : f64, layer = 2 : i64} : (tensor<1x64x256xf32>, tensor<256xf32>) -> tensor<1x64x256xf32>
  %y2 = model.linear %n2, %a {layer = 2 : i64} : (tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %x3 = model.add %x2, %y2 {layer = 2 : i64} : tensor<1x64x256xf32>

  %d3 = model.add %x3, %x3 {phase = #model.phase<backward>} : tensor<1x64x256xf32>
  %da2 = train.linear_weight_grad %d3, %n2 {layer = 2 : i64, phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x64x256xf32>, tensor<1x64x256xf32>) -> tensor<256x256xf32>
  %dn2 = model.linear %d3, %a layout in_out {layer = 2 : i64, phase = #model.phase<backward>} : (tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %d2 = model.add %dn2, %x2 {layer = 2 : i64, phase = #model.phase<backward>} : tensor<1x64x256xf32>
  %da1 = train.linear_weight_grad %d2, %n1 init %da2 {layer = 1 : i64, phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x64x256xf32>, tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %dn1 = model.linear %d2, %a layout in_out {layer = 1 : i64, phase = #model.phase<backward>} : (tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %d1 = model.add %dn1, %x1 {layer = 1 : i64, phase = #model.phase<backward>} : tensor<1x64x256xf32>
  %da0 = train.linear_weight_grad %d1, %n0 init %da1 {layer = 0 : i64, phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x64x256xf32>, tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %dn0 = model.linear %d1, %a layout in_out {layer = 0 : i64, phase = #model.phase<backward>} : (tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %d0 = model.add %dn0, %x0 {layer = 0 : i64, phase = #model.phase<backward>} : tensor<1x64x256xf32>
  train.accumulate @a, %da0 {phase = #model.phase<backward>} : tensor<256x256xf32>
}
