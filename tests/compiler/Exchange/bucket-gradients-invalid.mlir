// RUN: qlora-opt %s --split-input-file --verify-diagnostics --bucket-gradients
// RUN: not qlora-opt %s --split-input-file --bucket-gradients=gradient-buckets=0 2>&1 | FileCheck %s

// CHECK: error: expects at least one bucket, but got 0

// expected-error @below {{'model.parameter' op is trainable but gets no gradient}}
model.parameter @a : tensor<16xf32> {init = "zero", trainable}
// expected-note @below {{in this step}}
train.step accumulate batch 1 length 4 ["ids"] {
^bb0(%ids: tensor<1x4xi32>):
}

// -----

model.parameter @a : tensor<16xf32> {file = "m.safetensors"}
train.step accumulate batch 1 length 4 ["ids"] {
^bb0(%ids: tensor<1x4xi32>):
  %g = model.weight @a : tensor<16xf32>
  // expected-error @below {{(C2) expects a trainable parameter}}
  train.accumulate @a, %g : tensor<16xf32>
}

// -----

// expected-error @below {{expects a train.step accumulate}}
module {
}
