// SPDX-License-Identifier: MIT

// The experts of a layer in the model dialect.

#ifndef QLORA_FRONTEND_EXPERTBUILDER_H
#define QLORA_FRONTEND_EXPERTBUILDER_H

#include "dialects/Model/Model.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include "frontend/DecoderWeights.h"

namespace qlora {

/// A layer's experts in the graph.
struct RoutedLayer {
  mlir::Value output;  ///< [B, T, hidden]
  mlir::Value logits;  ///< of the router, [B, T, experts]
  mlir::Value choices; ///< expert indices, [B, T, chosen]
};

/// Builds the experts of `weights` for x [B, T, hidden]: ops of decoder layer
/// `layer` at `body`, parameters at `parameters`.
RoutedLayer buildExperts(mlir::ImplicitLocOpBuilder &body,
                         mlir::OpBuilder &parameters, const ModelConfig &config,
                         const ExpertWeights &weights, int64_t layer,
                         mlir::Value x);

/// Builds the load-balancing loss of the routers of all layers, f32 [1].
mlir::Value buildRouterLoss(mlir::ImplicitLocOpBuilder &body,
                            const ExpertsConfig &config,
                            llvm::ArrayRef<RoutedLayer> layers,
                            mlir::Value segments);

} // namespace qlora

#endif // QLORA_FRONTEND_EXPERTBUILDER_H
