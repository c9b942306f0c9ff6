// RUN: qlora-opt %s --compress-gradients="form=power_sgd ranks=2 rank=2" | FileCheck %s
// RUN: qlora-opt %s --compress-gradients="form=power_sgd ranks=2 rank=2 feedback=false" | FileCheck %s --check-prefix=LOST
// RUN: qlora-opt %s --compress-gradients="form=power_sgd ranks=2 rank=2" --fuse-rows --lower-to-program | FileCheck %s --check-prefix=TABLE
// RUN: not qlora-opt %s --compress-gradients="form=power_sgd ranks=2 rank=16" 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not qlora-opt %s --compress-gradients="form=power_sgd ranks=2 rank=0" 2>&1 | FileCheck %s --check-prefix=RANK

// NONE: error: --powersgd-rank 16 compresses no trainable tensor: rows * columns must be more than 2 * (rows + columns) * rank; lower it, or use another --ddp-comm-hook
// RANK: error: compress-gradients expects the form bf16, int8 or power_sgd, at least one rank and one row, but got 'power_sgd', 2 and 0

// AdamW's two moments of 4 x 1024 values take 32768 bytes of the state. Bases
// follow: 2 rows of 32 for each part of @b, and 2 rows of 24 for @a. The part
// of 16 rows is compressed too: (16 + 32) * 2 * 2 is less than 16 * 32.

// CHECK: train.accumulate @bias
// CHECK-NEXT: train.all_reduce 0 offset 0 elements 1024
// The first part of @b: its gradient, its error feedback, and the buffer that
// stores their sum.
// CHECK-NEXT: %[[G:.*]] = train.flat gradient @b {phase = #model.phase<exchange>} : tensor<64x32xf32>
// CHECK-NEXT: %[[E:.*]] = train.flat residual @b {phase = #model.phase<exchange>} : tensor<64x32xf32>
// CHECK-NEXT: %[[X:.*]] = model.add %[[G]], %[[E]]
// CHECK-NEXT: train.store_flat residual @b, %[[X]]
// CHECK-NEXT: %[[S:.*]] = train.flat state {{.*}}row = 32768 : i64} : tensor<2x32xf32>
// CHECK-NEXT: %[[R:.*]]:2 = model.split %[[S]] {{.*}}rows} : (tensor<2x32xf32>) -> (tensor<1x32xf32>, tensor<1x32xf32>)
// CHECK-NEXT: %[[O:.*]]:2 = model.rows(%[[R]]#0, %[[R]]#1) {{.*}}label = "orthonormal"
// CHECK: %[[Q:.*]] = model.concat %[[O]]#0, %[[O]]#1 {{.*}}rows}
// CHECK-NEXT: %[[P:.*]] = model.linear %[[Q]], %[[X]] {{.*}} -> tensor<2x64xf32>
// The second part: rows 64 to 80.
// CHECK-NEXT: train.flat gradient @b {{.*}}row = 64 : i64} : tensor<16x32xf32>
// CHECK: %[[P1:.*]] = model.linear {{.*}} -> tensor<2x16xf32>
// CHECK-NEXT: %[[PS:.*]] = model.concat %[[P]], %[[P1]] {{.*}} -> tensor<2x80xf32>
// CHECK-NEXT: %[[SENT:.*]] = model.all_sum %[[PS]] {{.*}}ranks = #model<ranks dp>
// The vector is sent unchanged.
// CHECK-NEXT: %[[V:.*]] = train.flat gradient @bias {{.*}} : tensor<40x1xf32>
// CHECK-NEXT: %[[VS:.*]] = model.all_sum %[[V]]

// CHECK: train.accumulate @a
// The first stage of the second bucket comes before the second stage of the
// first bucket.
// CHECK: train.flat gradient @a {{.*}} : tensor<40x24xf32>
// CHECK: model.all_sum {{.*}} : tensor<2x40xf32>
// CHECK: train.store_flat gradient @bias, %[[VS]] {{.*}} : tensor<40x1xf32>
// CHECK-NEXT: %[[PP:.*]]:2 = model.split %[[SENT]] {{.*}} -> (tensor<2x64xf32>, tensor<2x16xf32>)
// CHECK: %[[PO:.*]] = model.concat {{.*}} -> tensor<2x64xf32>
// CHECK-NEXT: %[[X1:.*]] = train.flat residual @b {{.*}} : tensor<64x32xf32>
// CHECK-NEXT: %[[Q1:.*]] = model.linear %[[PO]], %[[X1]] {{.*}}layout in_out {{.*}} -> tensor<2x32xf32>
// CHECK: %[[QS:.*]] = model.concat %[[Q1]], {{.*}} -> tensor<2x64xf32>
// CHECK-NEXT: %[[QSENT:.*]] = model.all_sum %[[QS]]

// The third stage: the stored basis, the sum, and the new error feedback.
// CHECK: %[[QQ:.*]]:2 = model.split %[[QSENT]]
// CHECK: %[[OLD:.*]] = train.flat state {{.*}}row = 32768
// CHECK-NEXT: %[[KEPT:.*]] = model.rows(%[[QQ]]#0, %[[OLD]]) {{.*}}label = "keep_basis"
// CHECK: train.store_flat state, %[[KEPT]] {{.*}}row = 32768
// CHECK-NEXT: %[[W:.*]] = train.linear_weight_grad %[[PO]], %[[QQ]]#0 {{.*}} -> tensor<64x32xf32>
// CHECK-NEXT: train.store_flat gradient @b, %[[W]]
// CHECK-NEXT: %[[M:.*]] = train.flat residual @b
// CHECK-NEXT: %[[LEFT:.*]] = model.rows(%[[M]], %[[W]]) {{.*}}label = "left_by_product"
// CHECK: train.store_flat residual @b, %[[LEFT]]
// CHECK-NOT: train.all_reduce

// LOST-NOT: residual
// LOST: label = "keep_basis"
// LOST-NOT: left_by_product

// TABLE: program.parameter "b1.powersgd_basis" state offset 32768 bytes 256 [2, 32] : f32 from f32 state init normal
// TABLE-NEXT: program.parameter "b2.powersgd_basis" state offset 33024
// TABLE-NEXT: program.parameter "a.powersgd_basis" state offset 33280 bytes 192 [2, 24]
// TABLE: program.arena state bytes 33472
// TABLE: program.arena residual bytes 20480
// P is computed in the matrix that is sent, and x (gradient plus error
// feedback) in the residual arena.
// TABLE: program.launch @add(%[[G:.*]] read f32, %[[X:.*]] read f32, %[[X]] write f32) {{.*}} rows 64
// TABLE: program.launch @matmul(%{{.*}} read f32, %[[X]] read f32, %{{.*}} write f32) absent [3] constants [2, 64, 32, 32, 32, 80,

module attributes {
    train.layout = [@b, @bias, @a],
    train.offsets = array<i64: 1024, 3584, 3632>} {
  model.parameter @b : tensor<80x32xf32> {init = "zero", part_names = ["b1", "b2"], part_rows = array<i64: 64, 16>, trainable}
  model.parameter @bias : tensor<40xf32> {init = "zero", trainable}
  model.parameter @a : tensor<40x24xf32> {init = "zero", trainable}
  train.step accumulate batch 1 length 4 ["ids"] {
  ^bb0(%ids: tensor<1x4xi32>):
    %b = model.weight @b : tensor<80x32xf32>
    %bias = model.weight @bias : tensor<40xf32>
    %a = model.weight @a : tensor<40x24xf32>
    train.accumulate @b, %b {phase = #model.phase<backward>} : tensor<80x32xf32>
    train.accumulate @bias, %bias {phase = #model.phase<backward>} : tensor<40xf32>
    train.all_reduce 0 offset 0 elements 3632 {phase = #model.phase<exchange>}
    train.accumulate @a, %a {phase = #model.phase<backward>} : tensor<40x24xf32>
    train.all_reduce 1 offset 3632 elements 1488 {phase = #model.phase<exchange>}
  }
}
