// SPDX-License-Identifier: MIT

// Verifiers and kernel calls of the gradients of expert ops.

#include "dialects/Train/Train.h"

using namespace mlir;
using namespace qlora::model;
using namespace qlora::train;

LogicalResult GroupedWeightGradOp::verify() {
  RankedTensorType type = tensorOf(getResult());
  int64_t groups = columnsOf(getOffsets()) - 1;
  int64_t above = getGroupsLast() ? 1 : groups;
  if (type.getRank() != 2 || !type.getElementType().isF32() ||
      type.getDimSize(0) != columnsOf(getDy()) * above ||
      type.getDimSize(1) != columnsOf(getX()) * (groups / above))
    return emitOpError("(C1) expects an f32 result of ")
           << groups << " groups of " << columnsOf(getDy()) << "x"
           << columnsOf(getX()) << ", but got " << type;
  return success();
}

KernelCall GroupedWeightGradOp::getKernelCall() {
  return {"grouped_weight_grad",
          {{"dy", getDy()}, {"x", getX()}, {"offsets", getOffsets()},
           {"dw", getResult()}},
          {{"m", matrixRows(tensorOf(getX()))},
           {"groups", columnsOf(getOffsets()) - 1},
           {"rows", columnsOf(getDy())}, {"columns", columnsOf(getX())},
           {"groups_last", getGroupsLast()}, {"alpha", getScale()},
           {"beta", getInit() ? 1.0 : 0.0}, {"shared", getShared()}}};
}

KernelCall RouteGradOp::getKernelCall() {
  RankedTensorType logits = tensorOf(getLogits());
  return {"route_grad",
          {{"logits", getLogits()}, {"choices", getChoices()},
           {"dweights", getDweights()}, {"dlogits", getDlogits()}},
          {{"rows", matrixRows(logits)}, {"experts", matrixColumns(logits)},
           {"chosen", columnsOf(getChoices())}, {"over_all", getOverAll()}}};
}

KernelCall ChoiceGradOp::getKernelCall() {
  return {"choice_grad",
          {{"tokens", getTokens()}, {"x", getRows()}, {"places", getPlaces()},
           {"dweights", getDweights()}},
          {{"rows", matrixRows(tensorOf(getTokens()))},
           {"chosen", columnsOf(getPlaces())},
           {"columns", columnsOf(getTokens())}}};
}
