// SPDX-License-Identifier: MIT

// RUN: qlora-opt %s --verify-diagnostics --attach-loss='objective=none label-smoothing=0.1'

func.func @routers(%h: tensor<?x?x8xf32>, %e: tensor<16x8xf32>, %targets: tensor<?x?xi32>, %sums: tensor<4xf32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1xf32>) {
  %slopes, %router = model.router_loss %sums, %sums {coefficient = 0.1 : f64, chosen = 2 : i64} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<1xf32>)
  %loss, %count, %correct = model.head_loss %h, %e, %targets : (tensor<?x?x8xf32>, tensor<16x8xf32>, tensor<?x?xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
  // expected-error @+1 {{--label-smoothing-factor needs a model without a router loss; set 'output_router_logits' to false in its config.json and import it again}}
  return %loss, %count, %router : tensor<1xf32>, tensor<1xf32>, tensor<1xf32>
}
