// SPDX-License-Identifier: MIT

// Lowering of what ranks send each other, and of what crosses the bus.

#include "compiler/Schedule/StepLowering.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;
using program::Arena;

void StepLowering::lowerAllReduce(AllReduceOp op) {
  Value buffer = arenaBuffer(Arena::Gradient, 4 * op.getOffset(),
                             4 * op.getElements(), QLORA_DTYPE_F32);
  const auto sumOver = [&](program::Group group) {
    program::CollectiveOp::create(b, op.getLoc(),
                                  program::Collective::AllReduce,
                                  op.getBucket(), buffer, /*source=*/Value(),
                                  /*peer=*/0, group);
  };
  if (!op.getPieces())
    return sumOver(program::Group::DP);
  sumOver(program::Group::Replicas);
  if (program::tensorRanksOf(step->getParentOfType<ModuleOp>()) > 1)
    sumOver(program::Group::TP);
}

/// From the host arena, on the communication queue: it lasts long and needs nothing
/// of the card, and on the copy queue decodes of the layer before would wait for it.
void StepLowering::lowerFromHost(Location loc, Value to,
                                 const ParameterPlace &place) {
  program::CopyOp::create(b, loc, to,
                          arenaBuffer(Arena::Host, place.offset,
                                      place.arenaBytes(), QLORA_DTYPE_U8),
                          program::Queue::Communication,
                          /*behind=*/IntegerAttr());
}

/// The pieces of all ranks, and what fills the last; of what is on the host after
/// a copy of it, or of this rank's piece.
void StepLowering::lowerGather(GatherWeightOp op) {
  const ParameterPlace &place = layout.lookup(op.getParameter());
  const bool isOnHost = place.arena == Arena::Host;
  if (isOnHost && place.piece == 0)
    return lowerFromHost(op.getLoc(), placeOf(op).buffer, place);
  Value piece;
  if (isOnHost) {
    piece = allocate(op.getResult(), place.piece, /*isSaved=*/false).buffer;
    lowerFromHost(op.getLoc(), piece, place);
  } else if (op.getRounded()) {
    piece = arenaBuffer(Arena::Rounded, place.offset / 2, place.piece / 2,
                        QLORA_DTYPE_U8);
  } else {
    piece =
        arenaBuffer(place.arena, place.offset, place.piece, QLORA_DTYPE_U8);
  }
  program::CollectiveOp::create(b, op.getLoc(), program::Collective::AllGather,
                                gathers++, placeOf(op).buffer, piece,
                                /*peer=*/0, program::Group::FSDP);
}

/// Without room between its rows, so that host memory has none.
void StepLowering::lowerCopy(CopyToHostOp op) {
  program::CopyOp::create(b, op.getLoc(), placeOf(op).buffer,
                          view(densePlaceOf(op.getX()), op.getX()),
                          program::Queue::Communication, op.getBehindAttr());
}

void StepLowering::lowerCopy(CopyFromHostOp op) {
  program::CopyOp::create(b, op.getLoc(), view(placeOf(op), op),
                          placeOf(op.getX()).buffer,
                          program::Queue::Communication,
                          b.getI64IntegerAttr(0));
}

/// The whole gradient, with what fills the last piece as zeros.
void StepLowering::lowerScatter(ScatterGradientOp op) {
  Value gradient = op.getGradient();
  RankedTensorType type = tensorTypeOf(gradient);
  const int64_t bytes = tensorBytes(type);
  const int64_t filled = layout.gatheredBytes(op.getParameter()) - bytes;
  Place whole = placeOf(gradient);
  const bool isDense =
      whole.stride == matrixColumns(type) || matrixRows(type) == 1;
  if (!isDense || (filled > 0 && !hasRoomBehind(gradient))) {
    Place copy = allocate(gradient, bytes + filled, /*isSaved=*/false);
    launchCopy("copy_rows", gradient, whole, copy, "copy");
    whole = copy;
  }
  if (filled > 0)
    program::FillOp::create(b, op.getLoc(),
                            program::ViewOp::create(b, op.getLoc(), whole.buffer,
                                                    bytes, filled));
  program::CollectiveOp::create(
      b, op.getLoc(), program::Collective::ReduceScatter, gathers++,
      view(placeOf(op), op), filled > 0 ? whole.buffer : view(whole, gradient),
      /*peer=*/0, program::Group::FSDP);
}

/// In place: a piece of the range is this rank's.
void StepLowering::lowerGather(GatherFlatOp op) {
  Value whole = placeOf(op).buffer;
  auto range = whole.getDefiningOp<program::BufferOp>();
  Value piece = arenaBuffer(range.getArena(), *range.getOffset(),
                            range.getBytes() / op.getPieces(),
                            qlora_dtype(range.getDtype()),
                            {int64_t(op.getPieces())});
  program::CollectiveOp::create(b, op.getLoc(), program::Collective::AllGather,
                                gathers++, whole, piece, /*peer=*/0,
                                program::Group::FSDP);
}

/// Between the rows of this rank and those of all.
void StepLowering::lowerTogether(Operation &op, program::Collective kind,
                                 Ranks ranks) {
  Value x = op.getOperand(0), result = op.getResult(0);
  Value source = view(densePlaceOf(x), x);
  Value target = view(placeOf(result), result);
  program::CollectiveOp::create(b, op.getLoc(), kind, gathers++, target, source,
                                /*peer=*/0, program::Group(ranks));
}

/// In the place of the result, where the summand is, if need be by a copy.
void StepLowering::lowerAllSum(AllSumOp op) {
  Value x = op.getX(), result = op.getResult();
  Place from = placeOf(x), to = placeOf(result);
  const int64_t columns = matrixColumns(tensorTypeOf(x));
  if (memory.placeOf(x) != memory.placeOf(result))
    launchCopy("copy_rows", x, from, to, "copy");
  const bool isDense = to.stride == columns || matrixRows(tensorTypeOf(x)) == 1;
  Place dense = isDense ? to : densePlaceOf(result);
  program::CollectiveOp::create(b, op.getLoc(), program::Collective::AllReduce,
                                gathers++, view(dense, result),
                                /*source=*/Value(), /*peer=*/0,
                                program::Group(op.getRanks()));
  if (!isDense)
    launchCopy("copy_rows", result, dense, to, "copy");
}

/// Values one by one, as the other stage receives them.
void StepLowering::lowerSend(SendOp op) {
  for (Value value : op.getValues())
    program::CollectiveOp::create(b, op.getLoc(), program::Collective::Send,
                                  gathers++, view(densePlaceOf(value), value),
                                  /*source=*/Value(), op.getPeer(),
                                  program::Group::PP);
  for (Value zero : op.getZeros())
    if (!zero.use_empty())
      program::FillOp::create(b, op.getLoc(), view(placeOf(zero), zero));
}

void StepLowering::lowerReceive(ReceiveOp op) {
  for (Value value : op.getValues())
    program::CollectiveOp::create(b, op.getLoc(), program::Collective::Recv,
                                  gathers++, view(placeOf(value), value),
                                  /*source=*/Value(), op.getPeer(),
                                  program::Group::PP);
}
