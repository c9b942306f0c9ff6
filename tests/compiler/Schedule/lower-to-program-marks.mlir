// SPDX-License-Identifier: MIT

// Marks of a buffer's purpose, which the report prints.

// RUN: qlora-opt %s --fuse-rows="fuse=false" --bucket-gradients --lower-to-program | FileCheck %s

// The backward reads y and a half of w, so their buffers are `saved`. The
// buffer of y is labelled x, because y overwrites x. The backward does not read
// z. It recomputes `again`, and computes dl and dz.
// CHECK: program.entry accumulate batch 1 length 64
// CHECK: program.buffer activation bytes 65536 : f32 {label = "x", saved}
// CHECK-NOT: program.buffer activation
// CHECK: program.buffer activation bytes 65536 : f32 {label = "w", saved}
// CHECK: program.buffer activation bytes 65536 : f32 {label = "z"}
// CHECK: program.buffer activation bytes 32768 : f32 {backward, label = "dl"}
// CHECK: program.buffer activation bytes 65536 : f32 {backward, label = "again", recomputed}
// CHECK: program.buffer activation bytes 65536 : f32 {backward, label = "dz"}

model.parameter @table : tensor<32x256xf32> {file = "m.safetensors"}
model.parameter @trained : tensor<32x256xf32> {init = "zero", trainable}

train.step accumulate batch 1 length 64 ["ids"] {
^bb0(%ids: tensor<1x64xi32>):
  %table = model.weight @table : tensor<32x256xf32>
  %x = model.embedding %ids, %table : (tensor<1x64xi32>, tensor<32x256xf32>) -> tensor<1x64x256xf32> loc("x")
  %y = model.add %x, %x : tensor<1x64x256xf32> loc("y")
  %w = model.embedding %ids, %table : (tensor<1x64xi32>, tensor<32x256xf32>) -> tensor<1x64x256xf32> loc("w")
  %l, %r = model.split %w : (tensor<1x64x256xf32>) -> (tensor<1x64x128xf32>, tensor<1x64x128xf32>) loc("parts")
  %z = model.glu silu %y, %w : tensor<1x64x256xf32> loc("z")
  %dl = model.add %l, %l {phase = #model.phase<backward>} : tensor<1x64x128xf32> loc("dl")
  %again = model.glu silu %y, %y {phase = #model.phase<recomputed>} : tensor<1x64x256xf32> loc("again")
  %dz = model.glu silu %again, %y {phase = #model.phase<backward>} : tensor<1x64x256xf32> loc("dz")
  %d = model.add %dz, %again {phase = #model.phase<backward>} : tensor<1x64x256xf32> loc("d")
  %e = model.add %d, %y {phase = #model.phase<backward>} : tensor<1x64x256xf32> loc("e")
  %de = train.embedding_grad %ids, %e {phase = #model.phase<backward>} : (tensor<1x64xi32>, tensor<1x64x256xf32>) -> tensor<32x256xf32>
  train.accumulate @trained, %de {phase = #model.phase<backward>} : tensor<32x256xf32>
}
