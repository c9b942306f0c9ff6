// SPDX-License-Identifier: MIT

// Derivative rules of the communication between ranks (ModelShardOps.td).

#include "dialects/Train/GradientRules.h"

using namespace mlir;
using namespace qlora::model;
using namespace qlora::train;

/// Each rank contributes a summand to the all-reduce and uses the sum, so the
/// gradient is an all-reduce too.
static LogicalResult reverse(AllSumOp sum, Tape &tape) {
  tape.add(sum.getX(), AllSumOp::create(tape.getBuilder(), sum.getLoc(),
                                        tape.lookup(sum.getResult()),
                                        sum.getRanks()));
  return success();
}

/// Rule of a collective: its gradient is the collective `Back` of dy.
template <typename Back, typename Op>
static LogicalResult reverseWith(Op op, Tape &tape) {
  tape.add(op.getX(),
           Back::create(tape.getBuilder(), op.getLoc(), op.getX().getType(),
                        tape.lookup(op.getResult()), op.getRanks()));
  return success();
}
static LogicalResult reverse(AllToAllOp op, Tape &tape) {
  return reverseWith<AllToAllOp>(op, tape);
}
/// All ranks use this rank's rows, so the rows' gradient is the sum of all
/// ranks' gradients.
static LogicalResult reverse(AllGatherOp op, Tape &tape) {
  return reverseWith<ReduceScatterOp>(op, tape);
}
static LogicalResult reverse(ReduceScatterOp op, Tape &tape) {
  return reverseWith<AllGatherOp>(op, tape);
}

static LogicalResult reverse(SwapBlocksOp swap, Tape &tape) {
  tape.add(swap.getX(),
           SwapBlocksOp::create(tape.getBuilder(), swap.getLoc(),
                                swap.getX().getType(),
                                tape.lookup(swap.getResult()),
                                swap.getSecond(), swap.getFirst()));
  return success();
}

/// Receives gradients of sent values from the stage that received the values.
static LogicalResult reverse(SendOp send, Tape &tape) {
  SmallVector<Value> wanted;
  for (auto [value, isWanted] :
       llvm::zip_equal(send.getValues(), send.getWanted()))
    if (isWanted)
      wanted.push_back(value);
  if (wanted.empty())
    return success();
  const SmallVector<bool> flags(wanted.size(), false);
  auto gradients = ReceiveOp::create(tape.getBuilder(), send.getLoc(),
                                     ValueRange(wanted).getTypes(),
                                     send.getPeer(), flags);
  for (auto [value, gradient] : llvm::zip_equal(wanted, gradients.getValues()))
    tape.add(value, gradient);
  return success();
}

static LogicalResult reverse(ReceiveOp receive, Tape &tape) {
  SmallVector<Value> gradients;
  for (auto [value, isWanted] :
       llvm::zip_equal(receive.getValues(), receive.getWanted())) {
    if (!isWanted)
      continue;
    Value gradient = tape.lookup(value);
    gradients.push_back(gradient ? gradient
                                 : buildZeros(tape.getBuilder(),
                                              receive.getLoc(),
                                              tensorOf(value)));
  }
  const SmallVector<bool> flags(gradients.size(), false);
  SendOp::create(tape.getBuilder(), receive.getLoc(), TypeRange(), gradients,
                 receive.getPeer(), tape.getBuilder().getStrArrayAttr({}),
                 flags);
  return success();
}

void qlora::train::registerExchangeGradients(MLIRContext *context) {
  attachRules<AllGatherOp, ReduceScatterOp, AllSumOp, AllToAllOp, SwapBlocksOp,
              SendOp, ReceiveOp>(
      context, [](auto op, Tape &tape) { return reverse(op, tape); });
}
