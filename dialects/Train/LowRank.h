// SPDX-License-Identifier: MIT

// PowerSGD (Vogels et al., 2019): all-reduces gradients as low-rank factors.
//
// A tensor is seen as a matrix [rows, columns] of its first dimension and all
// others, as in torch's powerSGD_hook. If
//
//   (rows + columns) * rank * 2 < rows * columns
//
// the gradient's sum over ranks is approximated by P^T Q, which is the same on
// all ranks; P and Q have `rank` rows. Other gradients are all-reduced
// uncompressed. The next step starts from Q, so train.so has Q as a parameter
// TENSOR.powersgd_basis with the role `state`, after all optimizer states, and
// plans, checkpoints and resumed runs include it. Q is initialized with normal
// random numbers, a function of the seed and Q's name.

#ifndef QLORA_DIALECTS_TRAIN_LOWRANK_H
#define QLORA_DIALECTS_TRAIN_LOWRANK_H

#include "dialects/Train/Optimizers.h"

namespace qlora::train {

/// Module attribute: rows of P and Q; 0: gradients are not compressed.
inline constexpr llvm::StringLiteral kApproximationRankAttr =
    "train.approximation_rank";

/// Suffix that makes the name of Q from the tensor's PEFT name.
inline constexpr llvm::StringLiteral kBasisSuffix = ".powersgd_basis";

/// A tensor whose gradient is all-reduced.
struct SummedTensor {
  mlir::FlatSymbolRefAttr parameter; ///< contains the tensor
  std::string name;
  int64_t row = 0; ///< first row in the parameter
  int64_t rows = 0, columns = 0;
  /// Byte offset of Q [rank, columns] in the state arena; none: uncompressed.
  std::optional<int64_t> basis = {};

  int64_t elements() const { return rows * columns; }
};

struct LowRankPlan {
  int64_t rank = 0;
  llvm::SmallVector<SummedTensor> tensors; ///< empty if rank is 0
  int64_t stateBytes = 0; ///< of the state arena, including all bases
};

/// Plans the all-reduces of all trainable tensors, which must be unsharded.
LowRankPlan planLowRank(mlir::Operation *module, const UpdatePlan &update);

} // namespace qlora::train

#endif // QLORA_DIALECTS_TRAIN_LOWRANK_H
