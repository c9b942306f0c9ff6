// SPDX-License-Identifier: MIT

// Declares tensors of the files as parameters of the model dialect.

#ifndef QLORA_FRONTEND_WEIGHTBUILDER_H
#define QLORA_FRONTEND_WEIGHTBUILDER_H

#include "dialects/Model/Model.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include "frontend/DecoderWeights.h"

namespace qlora {

/// Creates a model.parameter and the model.weight that reads it. `layer` is the
/// op's decoder layer, or -1 outside of the layers.
struct WeightBuilder {
  mlir::ImplicitLocOpBuilder &body;
  mlir::OpBuilder &parameters; ///< before the function

  /// Builds a parameter from one tensor, and the op that reads it. Both ops
  /// have the tensor's name as location. Does not change the location of
  /// `body`.
  mlir::Value build(const Weight &weight, int64_t layer) const {
    return build(weight.name, weight.shape, weight, layer);
  }
  /// Builds a parameter from one or more tensors of the files. `name` and
  /// `shape` may differ from those of the tensors, but not the number of
  /// elements.
  mlir::Value build(llvm::StringRef name, llvm::ArrayRef<int64_t> shape,
                    llvm::ArrayRef<Weight> parts, int64_t layer) const;
  /// Builds a parameter of type f32, whatever the type in the files.
  mlir::Value buildF32(const Weight &weight, int64_t layer) const;

private:
  mlir::Value declare(llvm::StringRef name, mlir::RankedTensorType type,
                      llvm::ArrayRef<Weight> parts, int64_t layer,
                      mlir::TypeAttr fileType) const;
};

} // namespace qlora

#endif // QLORA_FRONTEND_WEIGHTBUILDER_H
