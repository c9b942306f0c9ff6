// SPDX-License-Identifier: MIT

// PowerSGD (Vogels et al., 2019): which gradients ranks sum as products.
//
// A tensor is seen as a matrix [rows, columns] of its first dimension and all
// others, as torch's powerSGD_hook sees it. Where
//
//   (rows + columns) * rank * 2 < rows * columns
//
// its sum is P^T Q, of `rank` rows P and as many rows Q, of which all ranks of
// a run have the same; the others are summed as they are. Q is where the next
// step begins: TENSOR.powersgd_basis, a parameter of train.so with the role
// `state`, behind all that optimizers keep, so that plans, checkpoints and
// resumed runs have it without being told. It starts with normal numbers, a
// function of the seed and of its name.

#ifndef QLORA_DIALECTS_TRAIN_LOWRANK_H
#define QLORA_DIALECTS_TRAIN_LOWRANK_H

#include "dialects/Train/Optimizers.h"

namespace qlora::train {

/// Of a module: rows of P and Q; 0: gradients are summed as they are.
inline constexpr llvm::StringLiteral kApproximationRankAttr =
    "train.approximation_rank";

/// Of a tensor, as PEFT has it.
inline constexpr llvm::StringLiteral kBasisSuffix = ".powersgd_basis";

/// A tensor whose gradient is summed.
struct SummedTensor {
  mlir::FlatSymbolRefAttr parameter; ///< that it is in
  std::string name;
  int64_t row = 0; ///< of the parameter, at which it begins
  int64_t rows = 0, columns = 0;
  /// Of Q, [rank, columns], in the state arena; no value: summed as it is.
  std::optional<int64_t> basis = {};

  int64_t elements() const { return rows * columns; }
};

struct LowRankPlan {
  int64_t rank = 0;
  llvm::SmallVector<SummedTensor> tensors; ///< none without a rank
  int64_t stateBytes = 0; ///< of the state arena, with all bases
};

/// Of what each rank of a run has whole.
LowRankPlan planLowRank(mlir::Operation *module, const UpdatePlan &update);

} // namespace qlora::train

#endif // QLORA_DIALECTS_TRAIN_LOWRANK_H
