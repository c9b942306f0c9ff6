// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --split-input-file --verify-diagnostics --attach-loss

func.func @routers(%h: tensor<?x?x8xf32>, %e: tensor<16x8xf32>, %targets: tensor<?x?xi32>, %sums: tensor<4xf32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1xf32>) {
  %slopes, %router = model.router_loss %sums, %sums {coefficient = 0.1 : f64, chosen = 2 : i64} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<1xf32>)
  %loss, %count, %correct = model.head_loss %h, %e, %targets : (tensor<?x?x8xf32>, tensor<16x8xf32>, tensor<?x?xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
  // expected-error @+1 {{--rl needs a model without a router loss; set 'output_router_logits' to false in its config.json and import it again}}
  return %loss, %count, %router : tensor<1xf32>, tensor<1xf32>, tensor<1xf32>
}

// -----

func.func @sums(%h: tensor<?x?x8xf32>, %e: tensor<16x8xf32>, %targets: tensor<?x?xi32>) -> tensor<1xf32> {
  %loss, %count, %correct = model.head_loss %h, %e, %targets : (tensor<?x?x8xf32>, tensor<16x8xf32>, tensor<?x?xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
  // expected-error @+1 {{expects a loss_sum and a label_count}}
  return %loss : tensor<1xf32>
}
