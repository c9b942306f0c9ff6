// RUN: qlora-opt %s --split-input-file --rematerialize | FileCheck %s

// Values that share memory are counted once. U stands for 65536 bytes.

// An op with `init` works in place: x and a are alive at a, then b overwrites
// a, and c overwrites b. The peak is 2 U.
// CHECK: estimated_peak = 131072 : i64
model.parameter @w : tensor<256x256xf32> {init = "zero", trainable}
train.step accumulate batch 1 length 64 ["ids"] {
^bb0(%ids: tensor<1x64xi32>):
  %w = model.weight @w : tensor<256x256xf32>
  %x = model.embedding %ids, %w : (tensor<1x64xi32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %a = model.linear %x, %w : (tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %b = model.linear %x, %w init %a : (tensor<1x64x256xf32>, tensor<256x256xf32>, tensor<1x64x256xf32>) -> tensor<1x64x256xf32>
  %c = model.linear %x, %w init %b : (tensor<1x64x256xf32>, tensor<256x256xf32>, tensor<1x64x256xf32>) -> tensor<1x64x256xf32>
}

// -----

// An operand that is read again is not overwritten: x, a and b are alive. The
// peak is 3 U.
// CHECK: estimated_peak = 196608 : i64
model.parameter @w : tensor<256x256xf32> {init = "zero", trainable}
train.step accumulate batch 1 length 64 ["ids"] {
^bb0(%ids: tensor<1x64xi32>):
  %w = model.weight @w : tensor<256x256xf32>
  %x = model.embedding %ids, %w : (tensor<1x64xi32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %a = model.linear %x, %w : (tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %b = model.linear %x, %w init %a : (tensor<1x64x256xf32>, tensor<256x256xf32>, tensor<1x64x256xf32>) -> tensor<1x64x256xf32>
  %c = model.add %a, %b : tensor<1x64x256xf32>
}

// -----

// The results of a split share the memory of its operand, and the operands of a
// concat are written into the concat. First x is alive, then x and its sums,
// which have 1 U together. The peak is 2 U.
// CHECK: estimated_peak = 131072 : i64
model.parameter @w : tensor<256x256xf32> {init = "zero", trainable}
train.step accumulate batch 1 length 64 ["ids"] {
^bb0(%ids: tensor<1x64xi32>):
  %w = model.weight @w : tensor<256x256xf32>
  %x = model.embedding %ids, %w : (tensor<1x64xi32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %l, %r = model.split %x : (tensor<1x64x256xf32>) -> (tensor<1x64x128xf32>, tensor<1x64x128xf32>)
  %dl = model.add %l, %r {phase = #model.phase<backward>} : tensor<1x64x128xf32>
  %dr = model.add %r, %r {phase = #model.phase<backward>} : tensor<1x64x128xf32>
  %dx = model.concat %dl, %dr {phase = #model.phase<backward>} : (tensor<1x64x128xf32>, tensor<1x64x128xf32>) -> tensor<1x64x256xf32>
}

// -----

// The ops of de and dw2 add their results directly to the gradient arena, so de
// and dw2 need no activation memory. dw is the `init` of dw2, and needs 256 *
// 256 * 4 bytes. First x is alive, then x and dw: 1 U + 4 U.
// CHECK: estimated_peak = 327680 : i64
model.parameter @w : tensor<256x256xf32> {init = "zero", trainable}
model.parameter @e : tensor<256x256xf32> {init = "zero", trainable}
model.parameter @b : tensor<256xf32> {init = "zero", trainable}
train.step accumulate batch 1 length 64 ["ids"] {
^bb0(%ids: tensor<1x64xi32>):
  %w = model.weight @w : tensor<256x256xf32>
  %x = model.embedding %ids, %w : (tensor<1x64xi32>, tensor<256x256xf32>) -> tensor<1x64x256xf32>
  %de = train.embedding_grad %ids, %x {phase = #model.phase<backward>} : (tensor<1x64xi32>, tensor<1x64x256xf32>) -> tensor<256x256xf32>
  train.accumulate @e, %de {phase = #model.phase<backward>} : tensor<256x256xf32>
  %db = model.column_sum %x {phase = #model.phase<backward>} : (tensor<1x64x256xf32>) -> tensor<256xf32>
  train.accumulate @b, %db {phase = #model.phase<backward>} : tensor<256xf32>
  %dw = train.linear_weight_grad %x, %x {phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x64x256xf32>, tensor<1x64x256xf32>) -> tensor<256x256xf32>
  %dw2 = train.linear_weight_grad %x, %x init %dw {phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x64x256xf32>, tensor<1x64x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  train.accumulate @w, %dw2 {phase = #model.phase<backward>} : tensor<256x256xf32>
}

// -----

// In the forward a concat copies: both halves and the concat are alive, 2 U. A
// value that the runtime reads is computed in the runtime's buffer and needs no
// memory here.
// CHECK: estimated_peak = 131072 : i64
model.parameter @w : tensor<256x128xf32> {init = "zero", trainable}
train.step accumulate batch 1 length 64 ["ids"] {
^bb0(%ids: tensor<1x64xi32>):
  %w = model.weight @w : tensor<256x128xf32>
  %a = model.embedding %ids, %w : (tensor<1x64xi32>, tensor<256x128xf32>) -> tensor<1x64x128xf32>
  %b = model.embedding %ids, %w : (tensor<1x64xi32>, tensor<256x128xf32>) -> tensor<1x64x128xf32>
  %c = model.concat %a, %b : (tensor<1x64x128xf32>, tensor<1x64x128xf32>) -> tensor<1x64x256xf32>
  %n = model.column_sum %c : (tensor<1x64x256xf32>) -> tensor<256xf32>
  train.result "grad_norm", %n : tensor<256xf32>
}
