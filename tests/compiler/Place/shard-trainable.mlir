// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --shard-trainable=ranks=3 | FileCheck %s
// RUN: qlora-opt %s --shard-trainable="ranks=3 adapters" | FileCheck %s --check-prefix=ALL
// RUN: qlora-opt %s --shard-trainable=ranks=1 | FileCheck %s --check-prefix=ONE
// RUN: not qlora-opt %s --shard-trainable=ranks=0 2>&1 | FileCheck %s --check-prefix=ZERO

// ONE-NOT: piece
// ZERO: error: expects at least one rank to shard trainable parameters, but got 0

// A third of 64 * 32 * 4 = 8192 bytes, rounded up to a multiple of 64.
// Adapters, vectors and frozen weights are unsharded.
// CHECK: module attributes {model.mesh = #model.mesh<zero2 = 3>, {{.*}}piece_bytes = 2752 : i64, ranks = 3 : i64, weights = 1 : i64, whole_bytes = 8192
// CHECK-DAG: model.parameter @w : {{.*}}piece = 2752 : i64
// CHECK-DAG: model.parameter @a : tensor<8x64xf32> {init = "zero", trainable}
// CHECK-DAG: model.parameter @norm : tensor<64xf32> {file = "m.safetensors", trainable}
// CHECK-DAG: model.parameter @frozen : tensor<64x64xf32> {file = "m.safetensors"}
// CHECK-DAG: model.parameter @part : tensor<64x16xf32> {file = "m.safetensors", trainable}

// Parameters computed from other weights are not sharded, nor are parameters of
// which a rank uses a tp shard.
// ALL-DAG: model.parameter @a : {{.*}}piece = 704 : i64
// ALL-DAG: model.parameter @w : {{.*}}piece = 2752 : i64
// ALL-DAG: model.parameter @length : tensor<8x64xf32> {init = "computed", trainable}
// ALL-DAG: model.parameter @part : tensor<64x16xf32> {file = "m.safetensors", trainable}

model.parameter @w : tensor<64x32xf32> {file = "m.safetensors", trainable}
model.parameter @part : tensor<64x16xf32> {file = "m.safetensors", trainable}
model.parameter @norm : tensor<64xf32> {file = "m.safetensors", trainable}
model.parameter @a : tensor<8x64xf32> {init = "zero", trainable}
model.parameter @length : tensor<8x64xf32> {init = "computed", trainable}
model.parameter @frozen : tensor<64x64xf32> {file = "m.safetensors"}
func.func @parts() {
  %0 = model.weight @part {part = #model.part<2, 0, 0, 64, 64>} : tensor<32x16xf32>
  return
}
