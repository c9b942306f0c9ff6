// SPDX-License-Identifier: MIT

// Functions that cannot generate.

// RUN: qlora-opt %s --split-input-file --verify-diagnostics --specialize-shapes="batch=2 lengths=16 generation=3,8" --build-generation="entries=16"

model.parameter @embed : tensor<96x32xf16> {file = "a.safetensors"}
// expected-error @+1 {{expects the inputs positions and segments, which generation needs}}
func.func @forward(%ids: tensor<?x?xi32> {model.input = "ids"}, %segments: tensor<?x?xi32> {model.input = "segments"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>) {
  %e = model.weight @embed : tensor<96x32xf16>
  %x = model.embedding %ids, %e : (tensor<?x?xi32>, tensor<96x32xf16>) -> tensor<?x?x32xf32>
  %loss, %count, %correct = model.head_loss %x, %e, %ids : (tensor<?x?x32xf32>, tensor<96x32xf16>, tensor<?x?xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>
}

// -----

model.parameter @embed : tensor<96x32xf16> {file = "a.safetensors"}
// expected-error @+1 {{expects one LM head for generation, but has 2. Fix: remove --generation-batch}}
func.func @forward(%ids: tensor<?x?xi32> {model.input = "ids"}, %positions: tensor<?x?xi32> {model.input = "positions"}, %segments: tensor<?x?xi32> {model.input = "segments"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>) {
  %e = model.weight @embed : tensor<96x32xf16>
  %x = model.embedding %ids, %e : (tensor<?x?xi32>, tensor<96x32xf16>) -> tensor<?x?x32xf32>
  %loss, %count, %correct = model.head_loss %x, %e, %ids : (tensor<?x?x32xf32>, tensor<96x32xf16>, tensor<?x?xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
  %l2, %c2, %r2 = model.head_loss %x, %e, %positions : (tensor<?x?x32xf32>, tensor<96x32xf16>, tensor<?x?xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
  return %loss, %c2, %correct : tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>
}

// -----

model.parameter @embed : tensor<96x32xf16> {file = "a.safetensors"}
func.func @forward(%ids: tensor<?x?xi32> {model.input = "ids"}, %positions: tensor<?x?xi32> {model.input = "positions"}, %segments: tensor<?x?xi32> {model.input = "segments"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>) {
  %e = model.weight @embed : tensor<96x32xf16>
  %x = model.embedding %ids, %e : (tensor<?x?xi32>, tensor<96x32xf16>) -> tensor<?x?x32xf32>
  %list = model.token_list {tokens = array<i64: 95, 7>} : tensor<2xf32>
  %is, %rest = model.match_tokens %ids, %list : (tensor<?x?xi32>, tensor<2xf32>) -> (tensor<?x?x2xf32>, tensor<?x?xf32>)
  // expected-error @+1 {{does not support generation with trained tokens of a tied LM head. Fix: remove --generation-batch, or use --modules-to-save instead of --trainable-token-indices}}
  %loss, %count, %correct = model.head_loss %x, %e, %ids columns %is, %list : (tensor<?x?x32xf32>, tensor<96x32xf16>, tensor<?x?xi32>, tensor<?x?x2xf32>, tensor<2xf32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>
}

// -----

model.parameter @embed : tensor<96x32xf16> {file = "a.safetensors"}
func.func @forward(%ids: tensor<?x?xi32> {model.input = "ids"}, %positions: tensor<?x?xi32> {model.input = "positions"}, %segments: tensor<?x?xi32> {model.input = "segments"}, %lengths: tensor<?x?xi32> {model.input = "lengths"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>) {
  %e = model.weight @embed : tensor<96x32xf16>
  %x = model.embedding %ids, %e : (tensor<?x?xi32>, tensor<96x32xf16>) -> tensor<?x?x32xf32>
  // expected-error @+1 {{does not support generation of rows with more than 12 tokens, because each token changes the angles of all others (rope_type dynamic). Fix: --generation-length 12 or less}}
  %cos, %sin = model.rope_table %positions, %lengths {frequencies = array<f32: 1.0, 0.5, 1.0, 0.5>, dynamic_factor = 2.0 : f64, original_length = 12, attention_factor = 1.0 : f64} : (tensor<?x?xi32>, tensor<?x?xi32>) -> (tensor<?x?x8xf32>, tensor<?x?x8xf32>)
  %q = model.rope %x, %cos, %sin : (tensor<?x?x32xf32>, tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x32xf32>
  %loss, %count, %correct = model.head_loss %q, %e, %ids : (tensor<?x?x32xf32>, tensor<96x32xf16>, tensor<?x?xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>
}
