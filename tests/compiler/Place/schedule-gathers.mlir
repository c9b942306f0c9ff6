// SPDX-License-Identifier: MIT

// RUN: qlora-opt %S/place-frozen-weights.mlir --place-frozen-weights=shards=3 --schedule-gathers | FileCheck %s

// The largest layer has one 4-bit weight, and memory allows one more. The table
// is larger, so it is gathered when it is needed, and other weights after its
// last use. The same holds for the LM head. Gathers of the backward start with
// the backward.
// CHECK: train.step accumulate
// CHECK: model.gather_weight @table
// CHECK: model.embedding
// CHECK-NEXT: model.gather_weight @w0 {layer = 0
// CHECK-NEXT: model.gather_weight @w1 {layer = 1
// CHECK-NEXT: model.rms_norm
// CHECK-NEXT: model.linear {{.*}}{layer = 0
// CHECK-NEXT: model.linear {{.*}}{layer = 1
// CHECK-NEXT: model.gather_weight @head
// CHECK-NEXT: model.linear
// CHECK-NEXT: model.linear
// CHECK-NEXT: model.gather_weight @w1 {{.*}}backward
// CHECK-NEXT: model.gather_weight @w0 {{.*}}recomputed
// CHECK-NEXT: model.linear
// CHECK-NEXT: model.linear
// CHECK-NEXT: model.linear
