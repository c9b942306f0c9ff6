// SPDX-License-Identifier: MIT

// The experts of a layer in the model dialect.

#ifndef QLORA_FRONTEND_EXPERTBUILDER_H
#define QLORA_FRONTEND_EXPERTBUILDER_H

#include "dialects/Model/Model.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include "frontend/DecoderWeights.h"

namespace qlora {

/// Of a weight as its parameter has it.
mlir::Type elementType(mlir::MLIRContext &context, const Weight &weight);

/// What the experts of `weights` make of x [B, T, hidden]: ops of decoder layer
/// `layer` at `body`, parameters at `parameters`.
mlir::Value buildExperts(mlir::ImplicitLocOpBuilder &body,
                         mlir::OpBuilder &parameters,
                         const ModelConfig &config,
                         const ExpertWeights &weights, int64_t layer,
                         mlir::Value x);

} // namespace qlora

#endif // QLORA_FRONTEND_EXPERTBUILDER_H
