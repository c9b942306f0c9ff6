// SPDX-License-Identifier: MIT

// Declares tensors of the files as parameters of the model dialect.

#ifndef QLORA_FRONTEND_WEIGHTBUILDER_H
#define QLORA_FRONTEND_WEIGHTBUILDER_H

#include "dialects/Model/Model.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include "frontend/DecoderWeights.h"

namespace qlora {

/// Creates a model.parameter and the model.weight that reads it. `layer` is the
/// decoder layer of the op, or -1 for none.
struct WeightBuilder {
  mlir::ImplicitLocOpBuilder &body;
  mlir::OpBuilder &parameters; ///< before the function

  /// Builds a parameter from one tensor, and the op that reads it. Both ops get
  /// the tensor's name as location; the location of `body` does not change.
  mlir::Value build(const Weight &weight, int64_t layer) const {
    return build(weight.name, weight.shape, weight, layer);
  }
  /// Builds a parameter from one or several tensors of the files. `name` and
  /// `shape` may differ from the tensors', the number of elements may not.
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
