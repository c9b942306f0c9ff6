// RUN: qlora-opt %s --fuse-rows="fuse=false" --bucket-gradients --lower-to-program | FileCheck %s

// A row op overwrites its first operand without later readers. s overwrites u,
// because g is read again. t overwrites s, although it reads s twice. v
// overwrites t.
// CHECK: program.entry accumulate batch 1 length 64
// CHECK: program.launch @embedding(%{{.*}}, %{{.*}}, %[[G:[0-9]+]] {{[a-z_]+ [a-z0-9]+}})
// CHECK: program.launch @embedding(%{{.*}}, %{{.*}}, %[[U:[0-9]+]] {{[a-z_]+ [a-z0-9]+}})
// CHECK: program.launch @glu(%[[G]] read {{[a-z0-9]+}}, %[[U]] read {{[a-z0-9]+}}, %[[U]] write {{[a-z0-9]+}})
// CHECK: program.launch @add(%[[U]] read {{[a-z0-9]+}}, %[[U]] read {{[a-z0-9]+}}, %[[U]] write {{[a-z0-9]+}})
// CHECK: program.launch @add(%[[U]] read {{[a-z0-9]+}}, %[[G]] read {{[a-z0-9]+}}, %[[U]] write {{[a-z0-9]+}})

model.parameter @table : tensor<32x256xf32> {file = "m.safetensors"}
model.parameter @trained : tensor<32x256xf32> {init = "zero", trainable}

train.step accumulate batch 1 length 64 ["ids"] {
^bb0(%ids: tensor<1x64xi32>):
  %table = model.weight @table : tensor<32x256xf32>
  %g = model.embedding %ids, %table : (tensor<1x64xi32>, tensor<32x256xf32>) -> tensor<1x64x256xf32>
  %u = model.embedding %ids, %table : (tensor<1x64xi32>, tensor<32x256xf32>) -> tensor<1x64x256xf32>
  %s = model.glu silu %g, %u : tensor<1x64x256xf32>
  %t = model.add %s, %s : tensor<1x64x256xf32>
  %v = model.add %t, %g : tensor<1x64x256xf32>
  %de = train.embedding_grad %ids, %v {phase = #model.phase<backward>} : (tensor<1x64xi32>, tensor<1x64x256xf32>) -> tensor<32x256xf32>
  train.accumulate @trained, %de {phase = #model.phase<backward>} : tensor<32x256xf32>
}
