// Every form of compression sums rows of the arena over all ranks. In rows of a
// sharded gradient the ranks hold different elements, so their sum would be
// meaningless.

// RUN: not qlora-opt %s --bucket-gradients="min-bytes=0 gradient-buckets=2" --compress-gradients="form=bf16" 2>&1 | FileCheck %s -DFORM=bf16
// RUN: not qlora-opt %s --bucket-gradients="min-bytes=0 gradient-buckets=2" --compress-gradients="form=int8 ranks=2" 2>&1 | FileCheck %s -DFORM=int8
// RUN: not qlora-opt %s --bucket-gradients="min-bytes=0 gradient-buckets=2" --compress-gradients="form=power_sgd ranks=2" 2>&1 | FileCheck %s -DFORM=power_sgd

// CHECK: compress-gradients-pieces.mlir:[[#@LINE+4]]:1: error: --ddp-comm-hook [[FORM]]: --parallel shards the gradient of 'head', and compressed sums need all of it on each rank. Fix: --ddp-comm-hook no

module attributes {model.mesh = #model.mesh<zero2 = 2>} {
model.parameter @a : tensor<16x64xf32> {init = "zero", trainable}
model.parameter @head : tensor<64x32xf32> {init = "zero", trainable, piece = 4096}

train.step accumulate batch 1 length 4 ["ids"] {
^bb0(%ids: tensor<1x4xi32>):
  %head = model.gather_weight @head : tensor<64x32xf32>
  %a = model.weight @a : tensor<16x64xf32>
  %dhead = train.scatter_gradient @head, %head {phase = #model.phase<backward>} : (tensor<64x32xf32>) -> tensor<1024xf32>
  train.accumulate @head, %dhead {phase = #model.phase<backward>} : tensor<1024xf32>
  train.accumulate @a, %a {phase = #model.phase<backward>} : tensor<16x64xf32>
}
}
