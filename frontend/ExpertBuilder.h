// SPDX-License-Identifier: MIT

// The experts of a layer in the model dialect.

#ifndef QLORA_FRONTEND_EXPERTBUILDER_H
#define QLORA_FRONTEND_EXPERTBUILDER_H

#include "dialects/Model/Model.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include "frontend/DecoderWeights.h"

namespace qlora {

/// Output of a layer's experts, and the choices that it is based on.
struct RoutedLayer {
  mlir::Value output;          ///< [B, T, hidden]
  mlir::Value logits, choices; ///< of the router
};

/// Builds the experts of `weights` for x [B, T, hidden]: ops of decoder layer
/// `layer` at `body`, parameters at `parameters`.
RoutedLayer buildExperts(mlir::ImplicitLocOpBuilder &body,
                         mlir::OpBuilder &parameters,
                         const ModelConfig &config,
                         const ExpertWeights &weights, int64_t layer,
                         mlir::Value x);

/// Builds the loss of all routers together, f32 [1].
mlir::Value buildRouterLoss(mlir::ImplicitLocOpBuilder &body,
                            const ExpertsConfig &config,
                            llvm::ArrayRef<RoutedLayer> layers,
                            mlir::Value segments);

} // namespace qlora

#endif // QLORA_FRONTEND_EXPERTBUILDER_H
