// SPDX-License-Identifier: MIT

// Heads that an int8 cache cannot hold.

// RUN: qlora-opt %s --verify-diagnostics --specialize-shapes="batch=2 lengths=16 generation=3,8" --build-generation="entries=16 cache-type=int8"

model.parameter @embed : tensor<96x36xf16> {file = "a.safetensors"}
func.func @forward(%ids: tensor<?x?xi32> {model.input = "ids"}, %targets: tensor<?x?xi32> {model.input = "targets"}, %positions: tensor<?x?xi32> {model.input = "positions"}, %segments: tensor<?x?xi32> {model.input = "segments"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>) {
  %e = model.weight @embed : tensor<96x36xf16>
  %x = model.embedding %ids, %e : (tensor<?x?xi32>, tensor<96x36xf16>) -> tensor<?x?x36xf32>
  // expected-error @+1 {{has heads of 9 dimensions, but an int8 cache needs a multiple of 4. Fix: use another --kv-cache-dtype}}
  %a, %la = model.attention %x, %x, %x, %segments {heads = 4, kv_heads = 4, head_dim = 9, window = 0, scale = 0.5 : f64, layer = 0} : (tensor<?x?x36xf32>, tensor<?x?x36xf32>, tensor<?x?x36xf32>, tensor<?x?xi32>) -> (tensor<?x?x36xf32>, tensor<?x4x?xf32>)
  %loss, %count, %correct = model.head_loss %a, %e, %targets : (tensor<?x?x36xf32>, tensor<96x36xf16>, tensor<?x?xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>
}
