// RUN: qlora-opt %s --split-input-file --bucket-gradients="min-bytes=0" | FileCheck %s
// RUN: qlora-opt %s --split-input-file --bucket-gradients="min-bytes=1000000" | FileCheck %s --check-prefix=BIG
// RUN: qlora-opt %s --split-input-file --bucket-gradients="gradient-buckets=1" | FileCheck %s --check-prefix=ONE

// Three parameters, finished in the order c, b, a. Elements, each rounded up
// to 16: c 64 * 64 = 4096, b 3 * 7 = 21 -> 32, a 2 * 8 = 16. After the 1024
// statistics: c at 1024, b at 1024 + 4096 = 5120, a at 5152; the end is 5168,
// rounded up to rows of 1024: 6144.
//
// Three buckets have sizes near 3 : 2 : 1, so they end near 3072, 5120 and
// 6144. c is the first bucket, and already ends after 3072. So b begins the
// second bucket, and a is left for the third.

// CHECK: module attributes {train.decisions = {"bucket-gradients" = [{bytes = 20480 : i64, offset_bytes = 0 : i64, parameters = 1 : i64, starts_after = "c"}{{.*}}, train.flat_elements = 6144 : i64
// CHECK-SAME: train.layout = [@c, @b, @a]
// CHECK-SAME: train.offsets = array<i64: 1024, 5120, 5152>
// CHECK-LABEL: train.step accumulate batch 1 length 4
// CHECK: train.result "loss_sum"
// CHECK: train.accumulate @c
// CHECK-NEXT: train.all_reduce 0 offset 0 elements 5120
// CHECK: train.accumulate @b
// CHECK-NEXT: train.all_reduce 1 offset 5120 elements 32
// CHECK: train.accumulate @a
// CHECK-NEXT: train.all_reduce 2 offset 5152 elements 992

// The second variant finishes a before b. It has the same layout and the same
// order of collectives.
// CHECK-LABEL: train.step accumulate batch 1 length 8
// CHECK: train.accumulate @c
// CHECK-NEXT: train.all_reduce 0 offset 0 elements 5120
// CHECK: train.accumulate @a
// CHECK-NOT: train.all_reduce
// CHECK: train.accumulate @b
// CHECK-NEXT: train.all_reduce 1 offset 5120 elements 32
// CHECK-NEXT: train.all_reduce 2 offset 5152 elements 992

// Only the two buckets that always exist, with sizes near 2 : 1, so the first
// ends near 4096. It is still sent before the backward ends.
// BIG-LABEL: train.step accumulate batch 1 length 4
// BIG: train.accumulate @c
// BIG-NEXT: train.all_reduce 0 offset 0 elements 5120
// BIG: train.accumulate @a
// BIG-NEXT: train.all_reduce 1 offset 5120 elements 1024

// ONE-LABEL: train.step accumulate batch 1 length 4
// ONE: train.accumulate @a
// ONE-NEXT: train.all_reduce 0 offset 0 elements 6144
// ONE-LABEL: train.step accumulate batch 1 length 8
// ONE: train.accumulate @b
// ONE-NEXT: train.all_reduce 0 offset 0 elements 6144

model.parameter @a : tensor<2x8xf32> {init = "zero", trainable}
model.parameter @b : tensor<3x7xf32> {init = "zero", trainable}
model.parameter @c : tensor<64x64xf32> {init = "zero", trainable}
model.parameter @frozen : tensor<8x8xf32> {file = "m.safetensors"}

train.step accumulate batch 1 length 4 ["ids"] {
^bb0(%ids: tensor<1x4xi32>):
  %loss = model.rows() attributes {columns = 1 : i64, maps = []} : () -> tensor<1xf32> {
    %0 = arith.constant 1.0 : f32
    %1 = model.row_splat %0 : tensor<1xf32>
    model.row_yield %1 : tensor<1xf32>
  }
  %c = model.weight @c : tensor<64x64xf32>
  %b = model.weight @b : tensor<3x7xf32>
  %a = model.weight @a : tensor<2x8xf32>
  train.result "loss_sum", %loss {accumulate, phase = #model.phase<backward>} : tensor<1xf32>
  train.accumulate @c, %c {phase = #model.phase<backward>} : tensor<64x64xf32>
  train.accumulate @b, %b {phase = #model.phase<backward>} : tensor<3x7xf32>
  train.accumulate @a, %a {phase = #model.phase<backward>} : tensor<2x8xf32>
}

train.step accumulate batch 1 length 8 ["ids"] {
^bb0(%ids: tensor<1x8xi32>):
  %c = model.weight @c : tensor<64x64xf32>
  %b = model.weight @b : tensor<3x7xf32>
  %a = model.weight @a : tensor<2x8xf32>
  train.accumulate @c, %c {phase = #model.phase<backward>} : tensor<64x64xf32>
  train.accumulate @a, %a {phase = #model.phase<backward>} : tensor<2x8xf32>
  train.accumulate @b, %b {phase = #model.phase<backward>} : tensor<3x7xf32>
}

// -----

// One parameter is one bucket. 1024 + 16 elements, rounded up: 2048.
// CHECK: module attributes {train.decisions = {{.*}}, train.flat_elements = 2048 : i64
// CHECK: train.accumulate @only
// CHECK-NEXT: train.all_reduce 0 offset 0 elements 2048

model.parameter @only : tensor<4x4xf32> {init = "zero", trainable}
train.step accumulate batch 1 length 4 ["ids"] {
^bb0(%ids: tensor<1x4xi32>):
  %w = model.weight @only : tensor<4x4xf32>
  train.accumulate @only, %w {phase = #model.phase<backward>} : tensor<4x4xf32>
}

// -----

// Ten parameters of 1024 elements and the statistics are 11 rows of 1024. The
// first three of four buckets end near 4/10, 7/10 and 9/10 of 11 rows (4.4,
// 7.7, 9.9), so after rows 4, 8 and 10.
// CHECK: train.accumulate @p2
// CHECK-NEXT: train.all_reduce 0 offset 0 elements 4096
// CHECK: train.accumulate @p6
// CHECK-NEXT: train.all_reduce 1 offset 4096 elements 4096
// CHECK: train.accumulate @p8
// CHECK-NEXT: train.all_reduce 2 offset 8192 elements 2048
// CHECK: train.accumulate @p9
// CHECK-NEXT: train.all_reduce 3 offset 10240 elements 1024

model.parameter @p0 : tensor<1024xf32> {init = "zero", trainable}
model.parameter @p1 : tensor<1024xf32> {init = "zero", trainable}
model.parameter @p2 : tensor<1024xf32> {init = "zero", trainable}
model.parameter @p3 : tensor<1024xf32> {init = "zero", trainable}
model.parameter @p4 : tensor<1024xf32> {init = "zero", trainable}
model.parameter @p5 : tensor<1024xf32> {init = "zero", trainable}
model.parameter @p6 : tensor<1024xf32> {init = "zero", trainable}
model.parameter @p7 : tensor<1024xf32> {init = "zero", trainable}
model.parameter @p8 : tensor<1024xf32> {init = "zero", trainable}
model.parameter @p9 : tensor<1024xf32> {init = "zero", trainable}
train.step accumulate batch 1 length 4 ["ids"] {
^bb0(%ids: tensor<1x4xi32>):
  %g = model.weight @p0 : tensor<1024xf32>
  train.accumulate @p0, %g {phase = #model.phase<backward>} : tensor<1024xf32>
  train.accumulate @p1, %g {phase = #model.phase<backward>} : tensor<1024xf32>
  train.accumulate @p2, %g {phase = #model.phase<backward>} : tensor<1024xf32>
  train.accumulate @p3, %g {phase = #model.phase<backward>} : tensor<1024xf32>
  train.accumulate @p4, %g {phase = #model.phase<backward>} : tensor<1024xf32>
  train.accumulate @p5, %g {phase = #model.phase<backward>} : tensor<1024xf32>
  train.accumulate @p6, %g {phase = #model.phase<backward>} : tensor<1024xf32>
  train.accumulate @p7, %g {phase = #model.phase<backward>} : tensor<1024xf32>
  train.accumulate @p8, %g {phase = #model.phase<backward>} : tensor<1024xf32>
  train.accumulate @p9, %g {phase = #model.phase<backward>} : tensor<1024xf32>
}
