// SPDX-License-Identifier: MIT

// The experts of a layer in the model dialect.

#ifndef QLORA_FRONTEND_EXPERTBUILDER_H
#define QLORA_FRONTEND_EXPERTBUILDER_H

#include "dialects/Model/Model.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include "frontend/DecoderWeights.h"

namespace qlora {

/// What the experts of a layer gave, and by which choices.
struct RoutedLayer {
  mlir::Value output;          ///< [B, T, hidden]
  mlir::Value logits, choices; ///< of the router
};

/// What the experts of `weights` make of x [B, T, hidden]: ops of decoder layer
/// `layer` at `body`, parameters at `parameters`.
RoutedLayer buildExperts(mlir::ImplicitLocOpBuilder &body,
                         mlir::OpBuilder &parameters,
                         const ModelConfig &config,
                         const ExpertWeights &weights, int64_t layer,
                         mlir::Value x);

/// The loss of all routers together, f32 [1].
mlir::Value buildRouterLoss(mlir::ImplicitLocOpBuilder &body,
                            const ExpertsConfig &config,
                            llvm::ArrayRef<RoutedLayer> layers,
                            mlir::Value segments);

} // namespace qlora

#endif // QLORA_FRONTEND_EXPERTBUILDER_H
