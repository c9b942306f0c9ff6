// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --shard-vocabulary=shards=2 | FileCheck %s
// RUN: qlora-opt %s --shard-vocabulary=shards=2 --place-frozen-weights=shards=2 | FileCheck %s --check-prefix=REST
// RUN: qlora-opt %s --shard-vocabulary="shards=2 offload-tables" | FileCheck %s --check-prefix=HOST
// RUN: qlora-opt %s --shard-vocabulary="shards=2 form=false" | FileCheck %s --check-prefix=ONE
// RUN: qlora-opt %s --shard-vocabulary=shards=64 | FileCheck %s --check-prefix=MANY
// RUN: qlora-opt %s --shard-vocabulary="shards=64 form=true" | FileCheck %s --check-prefix=EVERY
// RUN: qlora-opt %s --shard-vocabulary=shards=1 | FileCheck %s --check-prefix=ONE

// ONE-NOT: piece
// ONE-NOT: model.all_gather

// A table of 1,001 rows of 64 bf16 becomes two shards of 501 rows. A table of
// 211 rows of 20 f32 becomes two shards of 108, because 106 rows do not fill
// complete cache lines.
// CHECK: model.mesh = #model.mesh<fsdp = 2>
// CHECK-DAG: model.parameter @words {{.*}}piece = 64128
// CHECK-DAG: model.parameter @odd {{.*}}piece = 8640
// CHECK-DAG: model.parameter @own : {{.*}}{file = "m.safetensors"}

// CHECK: train.step accumulate
// CHECK: %[[P:.*]] = model.weight_piece @words {layer = 3 : i64} : tensor<501x64xbf16>
// CHECK-NEXT: %[[IDS:.*]] = model.all_gather %arg0 {layer = 3 : i64} : (tensor<2x8xi32>) -> tensor<4x8xi32>
// CHECK-NEXT: %[[ROWS:.*]] = model.embedding %[[IDS]], %[[P]] {layer = 3 : i64, words = 1001 : i64} : (tensor<4x8xi32>, tensor<501x64xbf16>) -> tensor<4x8x64xbf16>
// CHECK-NEXT: %[[X:.*]] = model.reduce_scatter %[[ROWS]] {layer = 3 : i64} : (tensor<4x8x64xbf16>) -> tensor<2x8x64xbf16>
// CHECK: model.weight_piece @odd : tensor<108x20xf32>

// The LM head and its gradient: each rank computes the logits of its token ids
// for the rows of all ranks in one pass.
// CHECK: %[[W:.*]] = model.weight_piece @words {phase = #model.phase<backward>}
// CHECK-NEXT: %[[H:.*]] = model.all_gather %[[X]] {{.*}} -> tensor<4x8x64xbf16>
// CHECK-NEXT: %[[T:.*]] = model.all_gather %arg1 {{.*}} -> tensor<4x8xi32>
// CHECK-NEXT: %[[S:.*]], %[[G:.*]] = model.head_part %[[H]], %[[W]], %[[T]] {cap = 0.000000e+00 : f64, phase = #model.phase<backward>, shards = 2 : i64, words = 1001 : i64} : {{.*}} -> (tensor<4x8x4xf32>, tensor<4x8x64xf32>)
// CHECK-NEXT: %[[ALL:.*]] = model.all_gather %[[S]] {{.*}} -> tensor<8x8x4xf32>
// CHECK-NEXT: %{{.*}}, %{{.*}}, %{{.*}}, %[[D:.*]] = model.head_merge %[[ALL]], %[[T]], %[[G]], %[[W]] {{.*}}piece = 501
// CHECK-NEXT: %[[SUM:.*]] = model.reduce_scatter %[[D]] {{.*}} : (tensor<4x8x64xf32>) -> tensor<2x8x64xf32>
// CHECK-NEXT: train.round %[[SUM]] {{.*}} : (tensor<2x8x64xf32>) -> tensor<2x8x64xbf16>

// Without a gradient, the head does not compute a weighted sum of the table's
// rows. A head whose logits have other readers stays unsharded.
// CHECK: train.step evaluate
// CHECK: model.head_part {{.*}} -> tensor<4x8x4xf32>
// CHECK: model.head_merge {{.*}} -> (tensor<1xf32>, tensor<1xf32>, tensor<2x8xi32>)
// CHECK: model.head_loss {{.*}}columns

// A table that an op reads completely is also sharded, and gathered.
// REST: model.parameter @words {{.*}}piece = 64128
// REST: model.parameter @own {{.*}}piece = 64064
// REST: train.step evaluate
// REST: model.gather_weight @own
// REST-NEXT: model.head_loss

// A table of which kernels only read single rows stays unsharded, so that
// place-frozen-weights can put it into host memory.
// HOST: model.parameter @odd : tensor<211x20xf32> {file = "m.safetensors"}
// HOST: model.weight_piece @words
// HOST: model.weight @odd

// With 64 ranks, gathering the rows of all ranks would transfer more bytes than
// the weight has.
// MANY-NOT: model.head_part
// EVERY: model.head_part

model.parameter @words : tensor<1001x64xbf16> {file = "m.safetensors"}
model.parameter @odd : tensor<211x20xf32> {file = "m.safetensors"}
model.parameter @row : tensor<1x64xbf16> {file = "m.safetensors"}
model.parameter @own : tensor<1001x64xbf16> {file = "m.safetensors"}

train.step accumulate batch 2 length 8 ["ids", "targets"] {
^bb0(%ids: tensor<2x8xi32>, %targets: tensor<2x8xi32>):
  %w = model.weight @words : tensor<1001x64xbf16>
  %x = model.embedding %ids, %w {layer = 3 : i64} : (tensor<2x8xi32>, tensor<1001x64xbf16>) -> tensor<2x8x64xbf16>
  %odd = model.weight @odd : tensor<211x20xf32>
  %y = model.embedding %ids, %odd : (tensor<2x8xi32>, tensor<211x20xf32>) -> tensor<2x8x20xf32>
  %loss, %count, %correct, %dx = train.head_loss_grad %x, %w, %targets {phase = #model.phase<backward>} : (tensor<2x8x64xbf16>, tensor<1001x64xbf16>, tensor<2x8xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x8xi32>, tensor<2x8x64xbf16>)
}
train.step evaluate batch 2 length 8 ["ids", "targets"] {
^bb0(%ids: tensor<2x8xi32>, %targets: tensor<2x8xi32>):
  %w = model.weight @words : tensor<1001x64xbf16>
  %x = model.embedding %ids, %w : (tensor<2x8xi32>, tensor<1001x64xbf16>) -> tensor<2x8x64xbf16>
  %loss, %count, %correct = model.head_loss %x, %w, %targets : (tensor<2x8x64xbf16>, tensor<1001x64xbf16>, tensor<2x8xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x8xi32>)
  %own = model.weight @own : tensor<1001x64xbf16>
  %list = model.token_list {tokens = array<i64: 5>} : tensor<1xf32>
  %row = model.weight @row : tensor<1x64xbf16>
  %z = model.linear %x, %row : (tensor<2x8x64xbf16>, tensor<1x64xbf16>) -> tensor<2x8x1xbf16>
  %l2, %c2, %r2 = model.head_loss %x, %own, %targets columns %z, %list : (tensor<2x8x64xbf16>, tensor<1001x64xbf16>, tensor<2x8xi32>, tensor<2x8x1xbf16>, tensor<1xf32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<2x8xi32>)
}
