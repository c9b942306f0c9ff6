// SPDX-License-Identifier: MIT

// Lowers collectives between ranks, and copies from and to host memory.

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
  if (model::meshOf(step->getParentOfType<ModuleOp>()).tp > 1)
    sumOver(program::Group::TP);
}

/// Copies from the host arena. The copy takes long and needs no kernel, so it
/// uses the communication queue. On the copy queue it would delay decodes.
void StepLowering::lowerFromHost(Location loc, Value to,
                                 const ParameterPlace &place) {
  program::CopyOp::create(b, loc, to,
                          arenaBuffer(Arena::Host, place.offset,
                                      place.arenaBytes(), QLORA_DTYPE_U8),
                          program::Queue::Communication,
                          /*behind=*/IntegerAttr());
}

/// Gathers the shards of all ranks, with the padding of the last shard. If the
/// weight is in host memory, first copies this rank's shard to the device. An
/// unsharded weight is only copied.
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
    piece = arenaBuffer(place.arena, place.offset, place.piece, QLORA_DTYPE_U8);
  }
  program::CollectiveOp::create(b, op.getLoc(), program::Collective::AllGather,
                                gathers++, placeOf(op).buffer, piece,
                                /*peer=*/0, program::Group::FSDP);
}

/// Copies without gaps between rows, to save host memory.
void StepLowering::lowerCopy(CopyToHostOp op) {
  program::CopyOp::create(b, op.getLoc(), placeOf(op).buffer,
                          view(densePlaceOf(op.getX()), op.getX()),
                          program::Queue::Communication, op.getBehindAttr());
}

void StepLowering::lowerCopy(CopyFromHostOp op) {
  program::CopyOp::create(
      b, op.getLoc(), view(placeOf(op), op), placeOf(op.getX()).buffer,
      program::Queue::Communication, b.getI64IntegerAttr(0));
}

/// Reduce-scatters a gradient. The last shard is padded with zeros.
void StepLowering::lowerScatter(ScatterGradientOp op) {
  Value gradient = op.getGradient();
  RankedTensorType type = tensorTypeOf(gradient);
  const int64_t bytes = tensorBytes(type);
  const int64_t filled = layout.gatheredBytes(op.getParameter()) - bytes;
  Place whole = placeOf(gradient);
  if (!isDense(whole, type) || (filled > 0 && !hasRoomBehind(gradient))) {
    Place copy = allocate(gradient, bytes + filled, /*isSaved=*/false);
    launchCopy("copy_rows", gradient, whole, copy, "copy");
    whole = copy;
  }
  if (filled > 0)
    program::FillOp::create(
        b, op.getLoc(),
        program::ViewOp::create(b, op.getLoc(), whole.buffer, bytes, filled));
  program::CollectiveOp::create(
      b, op.getLoc(), program::Collective::ReduceScatter, gathers++,
      view(placeOf(op), op), filled > 0 ? whole.buffer : view(whole, gradient),
      /*peer=*/0, program::Group::FSDP);
}

/// Gathers in place: this rank's shard is a range of the result.
void StepLowering::lowerGather(GatherFlatOp op) {
  Value whole = placeOf(op).buffer;
  auto range = whole.getDefiningOp<program::BufferOp>();
  Value piece = arenaBuffer(
      range.getArena(), *range.getOffset(), range.getBytes() / op.getPieces(),
      qlora_dtype(range.getDtype()), {int64_t(op.getPieces())});
  program::CollectiveOp::create(b, op.getLoc(), program::Collective::AllGather,
                                gathers++, whole, piece, /*peer=*/0,
                                program::Group::FSDP);
}

/// Lowers all-gather, reduce-scatter and all-to-all of rows within a group.
void StepLowering::lowerTogether(Operation &op, Ranks ranks) {
  using program::Collective;
  const auto kind = isa<AllGatherOp>(op)       ? Collective::AllGather
                    : isa<ReduceScatterOp>(op) ? Collective::ReduceScatter
                                               : Collective::AllToAll;
  Value x = op.getOperand(0), result = op.getResult(0);
  Value source = view(densePlaceOf(x), x);
  Value target = view(placeOf(result), result);
  program::CollectiveOp::create(b, op.getLoc(), kind, gathers++, target, source,
                                /*peer=*/0, program::Group(ranks));
}

/// All-reduces in place in the result's memory. Copies the operand there first
/// if it is elsewhere.
void StepLowering::lowerAllSum(AllSumOp op) {
  Value x = op.getX(), result = op.getResult();
  Place from = placeOf(x), to = placeOf(result);
  if (memory.placeOf(x) != memory.placeOf(result))
    launchCopy("copy_rows", x, from, to, "copy");
  const bool isInPlace = isDense(to, tensorTypeOf(x));
  Place dense = isInPlace ? to : densePlaceOf(result);
  program::CollectiveOp::create(b, op.getLoc(), program::Collective::AllReduce,
                                gathers++, view(dense, result),
                                /*source=*/Value(), /*peer=*/0,
                                program::Group(op.getRanks()));
  if (!isInPlace)
    launchCopy("copy_rows", result, dense, to, "copy");
}

/// Sends the values one by one, in the order in which the peer receives them.
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
