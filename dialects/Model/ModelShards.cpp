// SPDX-License-Identifier: MIT

// Ops that several ranks compute together: verifiers, kernel calls, and the
// rewriting of an op over a table to an op over shards of the table.

#include "dialects/Model/Arithmetic.h"
#include "dialects/Model/Model.h"

using namespace mlir;
using namespace qlora::model;

//===----------------------------------------------------------------------===//
// Verifiers
//===----------------------------------------------------------------------===//

LogicalResult GatherWeightOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto parameter =
      symbols.lookupNearestSymbolFrom<ParameterOp>(*this, getParameterAttr());
  auto typeOf = [&](RankedTensorType whole) -> Type {
    return getRounded() ? whole.clone(BFloat16Type::get(getContext())) : whole;
  };
  if (!parameter || !(parameter.getPiece() || parameter.getOnHost()) ||
      (getRounded() && !parameter.getTrainable()) ||
      typeOf(parameter.getTensorType()) != getResult().getType())
    return emitOpError("(C1) expects a parameter with a piece or on_host, of "
                       "type ")
           << getResult().getType() << ", but got " << getParameterAttr();
  return success();
}

LogicalResult WeightPieceOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto parameter =
      symbols.lookupNearestSymbolFrom<ParameterOp>(*this, getParameterAttr());
  RankedTensorType type = tensorOf(getResult());
  if (parameter && parameter.getPiece() &&
      int64_t(*parameter.getPiece()) == tensorBytes(type)) {
    RankedTensorType whole = parameter.getTensorType();
    if (whole.getElementType() == type.getElementType() &&
        whole.getShape().drop_front() == type.getShape().drop_front())
      return success();
  }
  return emitOpError("(C1) expects a parameter with a piece of ")
         << type << ", but got " << getParameterAttr();
}

/// Returns whether `all` has the size of several ranks' `own`, concatenated by
/// rows. Sequence lengths may differ.
static bool areRowsOf(Value own, Value all) {
  RankedTensorType one = tensorOf(own), many = tensorOf(all);
  return one.getRank() == many.getRank() &&
         one.getElementType() == many.getElementType() &&
         (one.getRank() == 1 || columnsOf(own) == columnsOf(all)) &&
         one.getNumElements() > 0 &&
         many.getNumElements() % one.getNumElements() == 0;
}

static LogicalResult verifyTogether(Operation *op, Value own, Value all) {
  if (areRowsOf(own, all))
    return success();
  return op->emitOpError(
             "(C1) expects rows of one rank and of several ranks, but got ")
         << own.getType() << " and " << all.getType();
}

LogicalResult AllGatherOp::verify() {
  return verifyTogether(*this, getX(), getResult());
}

static bool areAsMany(Value one, Value other) {
  RankedTensorType a = tensorOf(one), b = tensorOf(other);
  return a.getElementType() == b.getElementType() &&
         a.getNumElements() == b.getNumElements();
}

LogicalResult AllToAllOp::verify() {
  if (areAsMany(getX(), getResult()))
    return success();
  return emitOpError("(C1) expects as many elements of one type, but got ")
         << getX().getType() << " and " << getResult().getType();
}

LogicalResult SwapBlocksOp::verify() {
  const int64_t elements = tensorOf(getX()).getNumElements();
  const int64_t first = getFirst(), second = getSecond();
  if (!areAsMany(getX(), getResult()) || first < 1 || second < 1 ||
      first > elements || second > elements || elements % (first * second))
    return emitOpError(
               "(C1) expects as many elements of one type, divisible by the "
               "blocks, but got ")
           << getX().getType() << " and " << getResult().getType() << " as "
           << first << " x " << second;
  const int64_t run = elements / (first * second);
  const int64_t columns = matrixColumns(tensorOf(getX()));
  if (columns % run && run % columns)
    return emitOpError("(C2) expects runs of ")
           << run << " to divide rows of " << columns << ", or the reverse";
  return success();
}

LogicalResult ReduceScatterOp::verify() {
  if (!isa<FloatType>(tensorOf(getX()).getElementType()))
    return emitOpError("(C2) expects float elements, but got ")
           << getX().getType();
  return verifyTogether(*this, getResult(), getX());
}

LogicalResult SendOp::verify() {
  if (getNames().size() == getZeros().size() &&
      getWanted().size() == getValues().size())
    return success();
  return emitOpError("(C1) expects a name for each result and a flag for each "
                     "tensor");
}

StringRef SendOp::getReadName(unsigned result) {
  return cast<StringAttr>(getNames()[result]).getValue();
}

LogicalResult ReceiveOp::verify() {
  if (getWanted().size() == getValues().size())
    return success();
  return emitOpError("(C1) expects a flag for each tensor");
}

static bool isF32Rows(Value value, Value hidden, int64_t columns) {
  RankedTensorType type = tensorOf(value);
  return type.getElementType().isF32() && columnsOf(value) == columns &&
         type.getShape().drop_back() == tensorOf(hidden).getShape().drop_back();
}

/// The gradient of capped logits' mean depends on the rows, and a shard returns
/// only one gradient.
template <typename Op> static LogicalResult verifySmoothing(Op op) {
  if (!op.getLabelSmoothing().isZero() && !op.getCap().isZero())
    return op.emitOpError("(C3) expects label_smoothing or a cap, not both");
  return success();
}

LogicalResult HeadPartOp::verify() {
  RankedTensorType weight = tensorOf(getWeight());
  if (weight.getRank() != 2 || weight.getDimSize(1) != columnsOf(getHidden()) ||
      weight.getDimSize(0) * int64_t(getShards()) < int64_t(getWords()))
    return emitOpError("(C1) expects pieces of a weight as wide as hidden, but "
                       "got ")
           << weight << " of " << getWords() << " tokens";
  if (tensorOf(getTargets()).getShape() !=
          tensorOf(getHidden()).getShape().drop_back() ||
      !isF32Rows(getStates(), getHidden(),
                 headStateNumbers(getLabelSmoothing())) ||
      (getGradient() &&
       !isF32Rows(getGradient(), getHidden(), columnsOf(getHidden()))))
    return emitOpError("(C2) expects targets, states and gradient with the "
                       "rows of hidden");
  return verifySmoothing(*this);
}

LogicalResult HeadMergeOp::verify() {
  const size_t count = getOfGradient().size();
  if ((count != 0 && count != 2) || (count == 0) != !getSummand() ||
      (getSummand() && getSummand().getType() != getOfGradient()[0].getType()))
    return emitOpError("(C1) expects a gradient, W and a summand, or none");
  RankedTensorType states = tensorOf(getStates());
  const int64_t shards = getShards();
  const int64_t numbers = headStateNumbers(getLabelSmoothing());
  if (columnsOf(getStates()) != numbers ||
      states.getNumElements() !=
          shards * numbers * tensorOf(getTargets()).getNumElements() ||
      !areRowsOf(getCorrect(), getTargets()))
    return emitOpError("(C2) expects states of ")
           << shards << " ranks and targets of their rows";
  return verifySmoothing(*this);
}

//===----------------------------------------------------------------------===//
// Memory and kernels
//===----------------------------------------------------------------------===//

std::optional<OutsideMemory> WeightPieceOp::getOutsideMemory() {
  return OutsideMemory{MemorySpace::Weight, getParameterAttr()};
}

SmallVector<MemoryTie> AllSumOp::getMemoryTies() {
  return {{&getXMutable(), cast<OpResult>(getResult()), /*continues=*/true}};
}

SmallVector<MemoryTie> HeadMergeOp::getMemoryTies() {
  if (!getSummand())
    return {};
  return {{&getOfGradientMutable()[0], cast<OpResult>(getSummand()),
           /*continues=*/true}};
}

KernelCall SwapBlocksOp::getKernelCall() {
  RankedTensorType x = tensorOf(getX());
  const int64_t first = getFirst(), second = getSecond();
  return {"swap_blocks",
          {{"x", getX()}, {"out", getResult()}},
          {{"rows", matrixRows(x)}, {"columns", matrixColumns(x)},
           {"first", first}, {"second", second},
           {"run", x.getNumElements() / (first * second)}}};
}

KernelCall HeadPartOp::getKernelCall() {
  RankedTensorType hidden = tensorOf(getHidden());
  return {"head_part",
          {{"hidden", getHidden()}, {"w", getWeight()},
           {"targets", getTargets()}, {"states", getStates()},
           {"gradient", getGradient()}},
          {{"rows", matrixRows(hidden)}, {"hidden_size", matrixColumns(hidden)},
           {"vocab", getWords()},
           {"piece", tensorOf(getWeight()).getDimSize(0)},
           {"shards", getShards()}, {"cap", getCap()},
           {"chunk_rows", kHeadChunkRows},
           {"smoothing", getLabelSmoothing()}}};
}

KernelCall HeadMergeOp::getKernelCall() {
  const int64_t width = getSummand() ? columnsOf(getSummand()) : 1;
  return {"head_merge",
          {{"states", getStates()}, {"targets", getTargets()},
           {"loss", getLoss()}, {"count", getCount()},
           {"correct", getCorrect()}, {"gradient", getSummand()},
           {"w", getSummand() ? getOfGradient().back() : Value()}},
          {{"rows", tensorOf(getTargets()).getNumElements()},
           {"hidden_size", width}, {"vocab", getWords()}, {"piece", getPiece()},
           {"shards", getShards()}, {"lddh", width}, {"cap", getCap()},
           {"lines", columnsOf(getLoss())},
           {"own", tensorOf(getCorrect()).getNumElements()},
           {"smoothing", getLabelSmoothing()},
           {"own_probability", getOwnProbability()}}};
}

//===----------------------------------------------------------------------===//
// Sharding of tables
//===----------------------------------------------------------------------===//

/// All-gathers the rows of `x` of each rank.
static Value gatherRows(OpBuilder &b, Location loc, Value x, int64_t shards,
                        Ranks ranks) {
  return AllGatherOp::create(
      b, loc, withRows(x, shards * tensorOf(x).getDimSize(0)), x, ranks);
}

/// Returns the rows of all ranks' tokens, which may be the same tokens.
static Value rowsOfAll(OpBuilder &b, Location loc, Value x, int64_t shards,
                       Ranks ranks) {
  return haveSameRows(ranks) ? x : gatherRows(b, loc, x, shards, ranks);
}

/// Returns the rows of this rank's tokens, summed over ranks.
static Value scatterRows(OpBuilder &b, Location loc, Value x, int64_t shards,
                         Ranks ranks) {
  if (haveSameRows(ranks))
    return AllSumOp::create(b, loc, x, ranks);
  return ReduceScatterOp::create(
      b, loc, withRows(x, tensorOf(x).getDimSize(0) / shards), x, ranks);
}

bool EmbeddingOp::canShardTable() {
  return getLayout() == WeightLayout::InOut && getWords() == 0;
}

SmallVector<Value> EmbeddingOp::shardTable(OpBuilder &b, Value piece,
                                           int64_t shards, Ranks ranks) {
  Value ids = rowsOfAll(b, getLoc(), getIds(), shards, ranks);
  auto rows = EmbeddingOp::create(
      b, getLoc(), withRows(getResult(), tensorOf(ids).getDimSize(0)), ids,
      piece, getPadding(), getLayout(), getVocabulary());
  return {scatterRows(b, getLoc(), rows, shards, ranks)};
}

SmallVector<Value> qlora::model::divideHead(OpBuilder &b,
                                            const ShardedHead &head,
                                            Value piece, int64_t shards,
                                            Ranks ranks) {
  Location loc = head.loss->getLoc();
  Value hidden = rowsOfAll(b, loc, head.hidden, shards, ranks);
  Value targets = rowsOfAll(b, loc, head.targets, shards, ranks);
  auto f32 = [&](int64_t columns) {
    return withColumns(hidden, columns).clone(b.getF32Type());
  };
  const Type sums = head.hasGradient ? f32(columnsOf(hidden)) : Type();
  auto part =
      HeadPartOp::create(b, loc, f32(headStateNumbers(head.labelSmoothing)),
                         sums, hidden, piece, targets, uint64_t(head.words),
                         uint64_t(shards), head.cap, head.labelSmoothing);
  Value states = gatherRows(b, loc, part.getStates(), shards, ranks);
  SmallVector<Value> ofGradient;
  if (head.hasGradient)
    ofGradient = {part.getGradient(), piece};
  TypeRange results = head.loss->getResultTypes();
  auto merge = HeadMergeOp::create(
      b, loc, results[0], results[1], results[2], sums, states, targets,
      ofGradient, uint64_t(head.words), uint64_t(tensorOf(piece).getDimSize(0)),
      uint64_t(shards), head.cap, head.labelSmoothing, head.hasOwnProbability);
  SmallVector<Value> found(merge->getResults().take_front(3));
  if (head.hasGradient)
    found.push_back(scatterRows(b, loc, merge.getSummand(), shards, ranks));
  return found;
}

bool HeadLossOp::canShardTable() {
  return getReplaced().empty() &&
         (getLabelSmoothing().isZero() || getCap().isZero());
}

SmallVector<Value> HeadLossOp::shardTable(OpBuilder &b, Value piece,
                                          int64_t shards, Ranks ranks) {
  return divideHead(b,
                    {*this, getHidden(), getTargets(),
                     tensorOf(getWeight()).getDimSize(0), getCap(),
                     getLabelSmoothing(), getOwnProbability(),
                     /*hasGradient=*/false},
                    piece, shards, ranks);
}
