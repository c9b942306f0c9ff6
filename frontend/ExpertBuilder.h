// SPDX-License-Identifier: MIT

// The experts of a layer in the model dialect.

#ifndef QLORA_FRONTEND_EXPERTBUILDER_H
#define QLORA_FRONTEND_EXPERTBUILDER_H

#include "dialects/Model/Model.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include "frontend/DecoderWeights.h"

namespace qlora {

/// What the experts of `weights` make of x [B, T, hidden]. `parameter` declares
/// a weight and returns its value. Ops are those of decoder layer `layer`.
mlir::Value buildExperts(
    mlir::ImplicitLocOpBuilder &body, mlir::OpBuilder &parameters,
    const ExpertsConfig &config, const ExpertWeights &weights, int64_t layer,
    llvm::function_ref<mlir::Value(const Weight &)> parameter, mlir::Value x);

} // namespace qlora

#endif // QLORA_FRONTEND_EXPERTBUILDER_H
