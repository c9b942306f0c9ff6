// SPDX-License-Identifier: MIT

// What compress-gradients writes in the place of the sums of one bucket.

#ifndef QLORA_COMPILER_GRAPH_GRADIENTSUMS_H
#define QLORA_COMPILER_GRAPH_GRADIENTSUMS_H

#include "dialects/Train/LowRank.h"

namespace qlora {

/// Elements of the gradient arena.
struct GradientRange {
  int64_t offset, elements;
};

/// The ops of one bucket, in stages: stage s stands where s more buckets are
/// complete.
class GradientSums {
public:
  virtual ~GradientSums() = default;
  virtual void build(mlir::OpBuilder &b, unsigned stage) = 0;
};

/// Rounded to bf16 (RowSums.cpp).
std::unique_ptr<GradientSums>
makeRoundedSums(llvm::ArrayRef<GradientRange> ranges);
inline constexpr unsigned kRoundedStages = 2;

/// As codes of blocks, of which each of `ranks` ranks sums a part
/// (RowSums.cpp). With `feedsBack` what rounding leaves is added to the next
/// gradient.
std::unique_ptr<GradientSums>
makeCodedSums(llvm::ArrayRef<GradientRange> ranges, int64_t ranks,
              bool feedsBack);
inline constexpr unsigned kCodedStages = 3;

/// An error where nothing would be summed as a product (LowRankSums.cpp).
llvm::LogicalResult checkLowRank(mlir::ModuleOp module,
                                 const train::LowRankPlan &plan);

/// Products in the place of sums (LowRankSums.cpp), of the tensors of `plan`
/// that lie in `ranges`; `plan` outlives it. With `feedsBack` what a product
/// leaves is added to the next gradient.
std::unique_ptr<GradientSums>
makeLowRankSums(const train::LowRankPlan &plan, mlir::ModuleOp module,
                llvm::ArrayRef<GradientRange> ranges, int64_t ranks,
                bool feedsBack);
inline constexpr unsigned kLowRankStages = 3;

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_GRADIENTSUMS_H
