// SPDX-License-Identifier: MIT

// Errors if earlier passes did not establish what lower-to-program requires.

// RUN: qlora-opt %s --split-input-file --lower-to-program --verify-diagnostics

// expected-error @+1 {{expects the attributes train.layout and train.offsets, which bucket-gradients writes}}
module {
}

// -----

module attributes {train.layout = [], train.offsets = array<i64>} {
  // expected-error @+1 {{is trainable but not in train.layout}}
  model.parameter @a : tensor<4x4xf32> {init = "zero", trainable}
}

// -----

module attributes {train.layout = [], train.offsets = array<i64>} {
  train.step evaluate batch 1 length 4 ["ids"] {
  ^bb0(%ids: tensor<1x4xi32>):
    // expected-error @+1 {{cannot be lowered: it is neither a row, library nor view op (did fuse-rows run?)}}
    %0 = arith.addi %ids, %ids : tensor<1x4xi32>
  }
}
