// SPDX-License-Identifier: MIT

// Creates the ops of exchanges between ranks.

#include "compiler/Partition/Reshard.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

/// Returns a rank's rows of a value that all ranks have: the first block of an
/// all-to-all, in which all ranks send this rank the same block.
static Value takeOwnRows(OpBuilder &b, Location loc, Value value,
                         RankedTensorType type, Ranks group) {
  const int64_t elements = type.getNumElements();
  const int64_t ranks = tensorOf(value).getNumElements() / elements;
  const RankedTensorType block = type.clone({1, elements});
  auto blocks = AllToAllOp::create(b, loc, withLength(block, 0, ranks), value,
                                   group);
  auto split = SplitOp::create(b, loc, SmallVector<Type>(ranks, block),
                               blocks.getResult(), /*rows=*/true);
  return SwapBlocksOp::create(b, loc, type, split.getParts().front(), 1, 1);
}

/// Exchanges [B, T / N, C] to [B, T, C / N] or back, or gathers [B, T / N] to
/// [B, T]. Between ranks, blocks are sent as [rank, sequence]; several
/// sequences need a transpose to [sequence, rank].
static Value exchangeTokens(OpBuilder &b, Location loc, Value value,
                            Held want, RankedTensorType type, Ranks group) {
  const RankedTensorType from = tensorOf(value);
  const int64_t lines = type.getDimSize(0);
  const auto [length, all] =
      std::minmax({from.getDimSize(1), type.getDimSize(1)});
  const int64_t ranks = all / length;
  RankedTensorType blocks = withLength(from, 0, ranks * lines);
  blocks = withLength(blocks, 1, length);
  const auto swap = [&](RankedTensorType to, Value x, int64_t first,
                        int64_t second) -> Value {
    return SwapBlocksOp::create(b, loc, to, x, first, second);
  };
  if (want == Held::Whole)
    return swap(type, AllGatherOp::create(b, loc, blocks, value, group), ranks,
                lines);
  if (want == Held::Tokens) {
    Value sent = lines > 1 ? swap(blocks, value, lines, ranks) : value;
    Value received = AllToAllOp::create(b, loc, blocks, sent, group);
    return swap(type, received, ranks, lines * length);
  }
  blocks = withLength(blocks, 2, type.getDimSize(2));
  Value sent = swap(blocks, value, lines * length, ranks);
  if (lines == 1)
    return AllToAllOp::create(b, loc, type, sent, group);
  Value received = AllToAllOp::create(b, loc, blocks, sent, group);
  return swap(type, received, ranks, lines);
}

Value qlora::reshard(OpBuilder &b, Location loc, Value value, Held have,
                     Held want, RankedTensorType type, Ranks group) {
  const auto is = [&](Held from, Held to) {
    return have == from && want == to;
  };
  if (is(Held::Partial, Held::Whole))
    return AllSumOp::create(b, loc, value, group);
  if (is(Held::Partial, Held::Rows))
    return ReduceScatterOp::create(b, loc, type, value, group);
  if (is(Held::Rows, Held::Whole))
    return AllGatherOp::create(b, loc, type, value, group);
  if (is(Held::Whole, Held::Rows))
    return takeOwnRows(b, loc, value, type, group);
  if (have == Held::Tokens || want == Held::Tokens)
    return exchangeTokens(b, loc, value, want, type, group);
  llvm_unreachable("no pass needs this exchange");
}

Value Resharding::of(Value value, Operation *reader) {
  Value &made = exchanged[value];
  if (made)
    return made;
  Operation *maker = place == AfterValue ? value.getDefiningOp() : nullptr;
  Operation *at = maker ? maker : reader;
  StageCopier stage(at);
  OpBuilder b(reader, &stage);
  if (place == AfterValue)
    b.setInsertionPointAfterValue(value);
  sent += tensorBytes(tensorOf(value));
  return made = reshard(b, at->getLoc(), value, have, want,
                        typeOf ? typeOf(value) : tensorOf(value), group);
}

void Resharding::exchangeOperands(Operation *op, unsigned first) {
  for (OpOperand &operand : op->getOpOperands().drop_front(first))
    if (contains(operand.get()))
      operand.set(of(operand.get(), op));
}

bool qlora::isTokenwise(Operation *op) {
  return isa<RowOp, WeightedMatmul>(op) || isView(op) ||
         op->hasTrait<TokenwiseOp>();
}

bool qlora::isOfTokens(Value value, ArrayRef<int64_t> tokens) {
  ArrayRef<int64_t> shape = tensorOf(value).getShape();
  return shape.size() > 1 && shape.take_front(2) == tokens;
}
