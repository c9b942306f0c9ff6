// RUN: qlora-opt %s --compress-gradients="form=bf16" | FileCheck %s --check-prefix=BF16
// RUN: qlora-opt %s --compress-gradients="form=int8 ranks=2" | FileCheck %s --check-prefix=INT8
// RUN: qlora-opt %s --compress-gradients="form=int8 ranks=2 feedback=false" | FileCheck %s --check-prefix=LOST
// RUN: not qlora-opt %s --compress-gradients="form=int4" 2>&1 | FileCheck %s --check-prefix=FORM

// FORM: error: compress-gradients expects the form bf16, int8 or power_sgd, at least one rank and one row, but got 'int4', 1 and 1

// The gradients are 1024 statistics, which stay exact, and 8 rows of 1024. The
// first bucket ends 16 elements after the 5th row. Only complete rows are sent,
// so the 6th row is sent with the second bucket.

// BF16: train.accumulate @a
// BF16-NEXT: train.all_reduce 0 offset 0 elements 1024
// BF16-NEXT: %[[G0:.*]] = train.flat gradient {of_run, phase = #model.phase<exchange>} : tensor<5x1024xf32>
// BF16-NEXT: %[[R0:.*]] = train.round %[[G0]] {{.*}} -> tensor<5x1024xbf16>
// BF16-NEXT: %[[S0:.*]] = model.all_sum %[[R0]] {phase = #model.phase<exchange>, ranks = #model<ranks dp>} : tensor<5x1024xbf16>
// BF16-NEXT: train.accumulate @b
// BF16-NEXT: %[[G1:.*]] = train.flat gradient {of_run, {{.*}}, row = 5 : i64} : tensor<3x1024xf32>
// BF16-NEXT: %[[R1:.*]] = train.round %[[G1]]
// BF16-NEXT: %[[S1:.*]] = model.all_sum %[[R1]]
// The wait for the first bucket comes after the second is started.
// BF16-NEXT: %[[W0:.*]] = train.round %[[S0]] {{.*}} -> tensor<5x1024xf32>
// BF16-NEXT: train.store_flat gradient, %[[W0]] {of_run, phase = #model.phase<exchange>} : tensor<5x1024xf32>
// BF16-NEXT: %[[W1:.*]] = train.round %[[S1]]
// BF16-NEXT: train.store_flat gradient, %[[W1]] {of_run, {{.*}}, row = 5 : i64}
// BF16-NOT: train.all_reduce

// For two ranks, a bucket must have an even number of rows, so the 5th row is
// also sent with the second bucket. Both buckets then have 4 rows: 16 blocks of
// 256, 8 for each rank.
// INT8: train.all_reduce 0 offset 0 elements 1024
// INT8-NEXT: %[[G:.*]] = train.flat gradient {{.*}} : tensor<16x256xf32>
// INT8-NEXT: %[[E:.*]] = train.flat residual {{.*}} : tensor<16x256xf32>
// INT8-NEXT: %[[X:.*]] = model.add %[[G]], %[[E]]
// INT8-NEXT: %[[C:.*]], %[[S:.*]] = train.encode_rows %[[X]] {{.*}} -> (tensor<16x256xi8>, tensor<16x1xf32>)
// INT8-NEXT: %[[L:.*]] = train.left_by_codes %[[X]], %[[C]], %[[S]]
// INT8-NEXT: train.store_flat residual, %[[L]]
// INT8-NEXT: %[[CM:.*]] = model.all_to_all %[[C]] {{.*}}ranks = #model<ranks dp>
// INT8-NEXT: %[[SM:.*]] = model.all_to_all %[[S]] {{.*}}ranks = #model<ranks dp>
// INT8-NEXT: train.accumulate @b
// The first stage of the second bucket comes before the second stage of the
// first bucket.
// INT8-NEXT: train.flat gradient {{.*}}row = 4 : i64} : tensor<16x256xf32>
// INT8: %[[CS:.*]]:2 = model.split %[[CM]] {{.*}}rows
// INT8-NEXT: %[[SS:.*]]:2 = model.split %[[SM]] {{.*}}rows
// INT8-NEXT: %[[D0:.*]] = train.decode_rows %[[CS]]#0, %[[SS]]#0
// INT8-NEXT: %[[D1:.*]] = train.decode_rows %[[CS]]#1, %[[SS]]#1
// INT8-NEXT: %[[SUM:.*]] = model.add %[[D0]], %[[D1]]
// INT8-NEXT: %[[E1:.*]] = train.flat residual {of_run, {{.*}}, pieces = 2 : i64} : tensor<8x256xf32>
// INT8-NEXT: %[[C1:.*]], %[[S1:.*]] = train.encode_rows %[[SUM]]
// INT8-NEXT: %[[L1:.*]] = train.left_by_codes %[[SUM]], %[[C1]], %[[S1]]
// INT8-NEXT: %[[K1:.*]] = model.add %[[E1]], %[[L1]]
// INT8-NEXT: train.store_flat residual, %[[K1]] {of_run, {{.*}}, pieces = 2 : i64}
// INT8-NEXT: %[[CA:.*]] = model.all_gather %[[C1]] {{.*}} -> tensor<16x256xi8>
// INT8-NEXT: %[[SA:.*]] = model.all_gather %[[S1]] {{.*}} -> tensor<16x1xf32>
// INT8: %[[W:.*]] = train.decode_rows %[[CA]], %[[SA]]
// INT8-NEXT: train.store_flat gradient, %[[W]] {of_run, phase = #model.phase<exchange>} : tensor<16x256xf32>
// INT8: train.store_flat gradient, %{{.*}} {{.*}}row = 4 : i64} : tensor<16x256xf32>

// LOST-NOT: residual
// LOST: model.all_gather

model.parameter @a : tensor<5136xf32> {init = "zero", trainable}
model.parameter @b : tensor<3056xf32> {init = "zero", trainable}
train.step accumulate batch 1 length 4 ["ids"] {
^bb0(%ids: tensor<1x4xi32>):
  %a = model.weight @a : tensor<5136xf32>
  %b = model.weight @b : tensor<3056xf32>
  train.accumulate @a, %a {phase = #model.phase<backward>} : tensor<5136xf32>
  train.all_reduce 0 offset 0 elements 6160 {phase = #model.phase<exchange>}
  train.accumulate @b, %b {phase = #model.phase<backward>} : tensor<3056xf32>
  train.all_reduce 1 offset 6160 elements 3056 {phase = #model.phase<exchange>}
}
