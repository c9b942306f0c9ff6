// SPDX-License-Identifier: MIT

// Declares tensors of the files as parameters of the model dialect.

#ifndef QLORA_FRONTEND_WEIGHTBUILDER_H
#define QLORA_FRONTEND_WEIGHTBUILDER_H

#include "dialects/Model/Model.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include "frontend/DecoderWeights.h"

namespace qlora {

/// Declares parameters and reads them, as ops of one decoder layer or none.
struct WeightBuilder {
  mlir::ImplicitLocOpBuilder &body;
  mlir::OpBuilder &parameters; ///< before the function

  /// Both ops have the tensor's name as location; the builder keeps its own.
  mlir::Value build(const Weight &weight, int64_t layer) const {
    return build(weight.name, weight.shape, weight, layer);
  }
  /// Builds a parameter from several tensors of the files, or from one with
  /// another name, or another shape of as many elements.
  mlir::Value build(llvm::StringRef name, llvm::ArrayRef<int64_t> shape,
                    llvm::ArrayRef<Weight> parts, int64_t layer) const;
  /// Builds a parameter that is f32 in the program, whatever the files have.
  mlir::Value buildF32(const Weight &weight, int64_t layer) const;

private:
  mlir::Value declare(llvm::StringRef name, mlir::RankedTensorType type,
                      llvm::ArrayRef<Weight> parts, int64_t layer,
                      mlir::TypeAttr fileType) const;
};

} // namespace qlora

#endif // QLORA_FRONTEND_WEIGHTBUILDER_H
