// SPDX-License-Identifier: MIT

// Choice of the compressed tensors, and offsets of their bases (Q).

#include "dialects/Train/LowRank.h"

using namespace mlir;
using namespace qlora::model;
using namespace qlora::train;

/// Minimum compression factor: torch's min_compression_rate.
static constexpr int64_t kLeastGain = 2;
/// Alignment of a basis in bytes; equals kStateAlignment of Optimizers.cpp.
static constexpr int64_t kBasisAlignment = 64;

static bool isWorthIt(const SummedTensor &tensor, int64_t rank) {
  return (tensor.rows + tensor.columns) * rank * kLeastGain < tensor.elements();
}

LowRankPlan qlora::train::planLowRank(Operation *module,
                                      const UpdatePlan &update) {
  LowRankPlan plan;
  plan.stateBytes = update.stateBytes;
  plan.rank = numberOf(module, kApproximationRankAttr, /*ifAbsent=*/0);
  if (plan.rank == 0)
    return plan;
  for (auto parameter : module->getRegion(0).getOps<ParameterOp>()) {
    if (!parameter.getTrainable())
      continue;
    for (const ParameterPart &part : partsOf(parameter)) {
      SummedTensor tensor{FlatSymbolRefAttr::get(parameter), part.name.str(),
                          part.row, part.shape.front()};
      tensor.columns = ShapedType::getNumElements(part.shape) / tensor.rows;
      if (isWorthIt(tensor, plan.rank)) {
        tensor.basis = plan.stateBytes;
        plan.stateBytes +=
            llvm::alignTo(4 * plan.rank * tensor.columns, kBasisAlignment);
      }
      plan.tensors.push_back(std::move(tensor));
    }
  }
  return plan;
}
