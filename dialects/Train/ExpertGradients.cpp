// SPDX-License-Identifier: MIT

// Verifiers and kernel calls of the gradients of expert ops.

#include "dialects/Train/Train.h"

using namespace mlir;
using namespace qlora::model;
using namespace qlora::train;

using A = KernelArgument;

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
  int64_t rows = columnsOf(getDy()), columns = columnsOf(getX());
  return {"grouped_weight_grad",
          {{A::Operand, 0}, {A::Operand, 1}, {A::Operand, 2}, {A::Result, 0}},
          {matrixRows(tensorOf(getX())), columnsOf(getOffsets()) - 1, rows,
           columns, rows, columns, getGroupsLast(),
           doubleBits(getScale().convertToDouble()),
           doubleBits(getInit() ? 1.0 : 0.0), int64_t(getShared())},
          {{4, 0}, {5, 1}}};
}

KernelCall RouteGradOp::getKernelCall() {
  RankedTensorType logits = tensorOf(getLogits());
  int64_t experts = matrixColumns(logits);
  return {"route_grad",
          {{A::Operand, 0}, {A::Operand, 1}, {A::Operand, 2}, {A::Result, 0}},
          {matrixRows(logits), experts, columnsOf(getChoices()), experts,
           experts, getOverAll()},
          {{3, 0}, {4, 3}}};
}

KernelCall ChoiceGradOp::getKernelCall() {
  int64_t width = columnsOf(getTokens());
  return {"choice_grad",
          {{A::Operand, 0}, {A::Operand, 1}, {A::Operand, 2}, {A::Result, 0}},
          {matrixRows(tensorOf(getTokens())), columnsOf(getPlaces()), width,
           width, width},
          {{3, 0}, {4, 1}}};
}
