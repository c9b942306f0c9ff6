// SPDX-License-Identifier: MIT

// The ops with which compress-gradients replaces the all-reduces of one bucket.

#ifndef QLORA_COMPILER_EXCHANGE_GRADIENTREDUCTION_H
#define QLORA_COMPILER_EXCHANGE_GRADIENTREDUCTION_H

#include "dialects/Train/LowRank.h"

namespace qlora {

/// A range of the gradient arena, in elements.
struct GradientRange {
  int64_t offset, elements;
};

/// Builds the ops of one bucket, in stages. Stage s of bucket i runs after the
/// gradients of bucket i + s are complete.
class GradientReduction {
public:
  virtual ~GradientReduction() = default;
  virtual void build(mlir::OpBuilder &b, unsigned stage) = 0;
};

/// Sends gradients rounded to bf16 (RowwiseReduction.cpp).
std::unique_ptr<GradientReduction>
makeRoundedReduction(llvm::ArrayRef<GradientRange> ranges);
inline constexpr unsigned kRoundedStages = 2;

/// Sends 8-bit codes of blocks; each of `ranks` ranks sums one range
/// (RowwiseReduction.cpp). With `feedsBack`, the quantization error is added to
/// the next gradient.
std::unique_ptr<GradientReduction>
makeCodedReduction(llvm::ArrayRef<GradientRange> ranges, int64_t ranks,
                   bool feedsBack);
inline constexpr unsigned kCodedStages = 3;

/// Fails if no tensor would use the low-rank form (PowerSgdReduction.cpp).
llvm::LogicalResult checkLowRank(mlir::ModuleOp module,
                                 const train::LowRankPlan &plan);

/// Sends low-rank factors of the tensors of `plan` in `ranges`
/// (PowerSgdReduction.cpp). `plan` must outlive the result. With `feedsBack`,
/// the approximation error is added to the next gradient.
std::unique_ptr<GradientReduction>
makePowerSgdReduction(const train::LowRankPlan &plan, mlir::ModuleOp module,
                      llvm::ArrayRef<GradientRange> ranges, int64_t ranks,
                      bool feedsBack);
inline constexpr unsigned kLowRankStages = 3;

} // namespace qlora

#endif // QLORA_COMPILER_EXCHANGE_GRADIENTREDUCTION_H
