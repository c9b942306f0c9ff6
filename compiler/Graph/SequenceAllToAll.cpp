// SPDX-License-Identifier: MIT

// Exchanges blocks between ranks and joins them into sequences.

#include "compiler/Graph/SequenceAllToAll.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

static RankedTensorType like(Value value, ArrayRef<int64_t> shape) {
  return tensorOf(value).clone(shape);
}

Value SequenceAllToAll::wholeLines(OpBuilder &b, Location loc,
                                   Value own) const {
  Value parts = AllGatherOp::create(
      b, loc, like(own, {ranks * lines, ownLength()}), own, Ranks::CP);
  return SwapBlocksOp::create(b, loc, like(own, {lines, length}), parts, ranks,
                              lines);
}

/// The all-to-all returns blocks as [rank, sequence]. Several sequences need a
/// transpose to [sequence, rank].
Value SequenceAllToAll::toAllTokens(OpBuilder &b, Location loc,
                                    Value own) const {
  const int64_t columns = columnsOf(own) / ranks;
  const RankedTensorType blocks =
      like(own, {ranks * lines, ownLength(), columns});
  const RankedTensorType whole = like(own, {lines, length, columns});
  Value sent =
      SwapBlocksOp::create(b, loc, blocks, own, lines * ownLength(), ranks);
  if (lines == 1)
    return AllToAllOp::create(b, loc, whole, sent, Ranks::CP);
  Value received = AllToAllOp::create(b, loc, blocks, sent, Ranks::CP);
  return SwapBlocksOp::create(b, loc, whole, received, ranks, lines);
}

Value SequenceAllToAll::toOwnTokens(OpBuilder &b, Location loc,
                                    Value all) const {
  const int64_t columns = columnsOf(all);
  const RankedTensorType blocks =
      like(all, {ranks * lines, ownLength(), columns});
  Value sent = all;
  if (lines > 1)
    sent = SwapBlocksOp::create(b, loc, blocks, all, lines, ranks);
  Value received = AllToAllOp::create(b, loc, blocks, sent, Ranks::CP);
  return SwapBlocksOp::create(
      b, loc, like(all, {lines, ownLength(), columns * ranks}), received, ranks,
      lines * ownLength());
}
