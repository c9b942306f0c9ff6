// SPDX-License-Identifier: MIT

// Verifiers and arithmetic of the ops for single token ids (labels as in
// ModelTokenOps.td), and the embedding's methods for them.

#include "dialects/Model/Arithmetic.h"

#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/DenseSet.h"

using namespace mlir;
using namespace qlora::model;

//===----------------------------------------------------------------------===//
// embedding
//===----------------------------------------------------------------------===//

StringRef EmbeddingOp::getModulePath() {
  auto table = getTable().getDefiningOp<WeightOp>();
  if (!table)
    return {};
  auto [module, name] = table.getParameter().rsplit('.');
  return name == "weight" ? module : StringRef();
}

bool EmbeddingOp::embedsTokens() {
  auto ids = dyn_cast<BlockArgument>(getIds());
  auto function = dyn_cast<FunctionOpInterface>((*this)->getParentOp());
  if (!ids || !function)
    return false;
  auto input = function.getArgAttrOfType<StringAttr>(ids.getArgNumber(),
                                                     "model.input");
  return input && input.getValue() == "ids";
}

//===----------------------------------------------------------------------===//
// token_list
//===----------------------------------------------------------------------===//

LogicalResult TokenListOp::verify() {
  ArrayRef<int64_t> tokens = getTokens();
  RankedTensorType type = tensorOf(getResult());
  if (tokens.empty() || type.getRank() != 1 || !type.getElementType().isF32() ||
      type.getDimSize(0) != static_cast<int64_t>(tokens.size()))
    return emitOpError("(C1) expects an f32 result of as many elements as "
                       "tokens, at least 1, but got ")
           << type << " for " << tokens.size();
  llvm::DenseSet<int64_t> seen;
  for (int64_t token : tokens)
    if (token < 0 || token >= 1 << 24 || !seen.insert(token).second)
      return emitOpError("(C2) expects different tokens in [0, 2^24), but got ")
             << token;
  return success();
}

SmallVector<Value> TokenListOp::buildRow(OpBuilder &builder, ValueRange) {
  auto row = RankedTensorType::get({getRowColumns()}, builder.getF32Type());
  auto numbers = llvm::map_to_vector(
      getTokens(), [](int64_t token) { return static_cast<float>(token); });
  return {RowConstantOp::create(builder, getLoc(), row, numbers)};
}

//===----------------------------------------------------------------------===//
// match_tokens
//===----------------------------------------------------------------------===//

LogicalResult MatchTokensOp::verify() {
  RankedTensorType ids = tensorOf(getIds());
  if (ids.getRank() != 2 || !ids.getElementType().isInteger(32) ||
      getRest().getType() != ids.clone(Float32Type::get(getContext())))
    return emitOpError("(C1) expects ids [B, T] i32 and rest of that shape in "
                       "f32, but got ")
           << ids << " and " << getRest().getType();
  RankedTensorType matches = tensorOf(getMatches());
  if (matches.getRank() != 3 ||
      matches.getShape().drop_back() != ids.getShape() ||
      tensorOf(getTokens()).getRank() != 1 ||
      columnsOf(getTokens()) != columnsOf(getMatches()))
    return emitOpError("(C2) expects matches of each id with each of ")
           << getTokens().getType() << ", but got " << matches;
  return success();
}

bool MatchTokensOp::isScalarResult(unsigned index) { return index == 1; }

SmallVector<MapAttr> MatchTokensOp::getRowMaps() {
  return {mapOf(*this, MapKind::Scalar), mapOf(*this, MapKind::Column)};
}

SmallVector<Value> MatchTokensOp::buildRow(OpBuilder &builder,
                                           ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  Value tokens = arguments[1];
  Type row = tokens.getType();
  Value is = a.compare(arith::CmpFPredicate::OEQ, a.splat(arguments[0], row),
                       tokens);
  Value matches = a.select(is, a.constant(1, row), a.constant(0, row));
  return {matches, a.sub(a.number(1), a.sum(matches))};
}

//===----------------------------------------------------------------------===//
// scale_rows
//===----------------------------------------------------------------------===//

LogicalResult ScaleRowsOp::verify() {
  if (tensorOf(getX()).getShape().drop_back() !=
      tensorOf(getFactors()).getShape())
    return emitOpError("(C1) expects a factor for each row of ")
           << getX().getType() << ", but got " << getFactors().getType();
  if (getX().getType() != getResult().getType())
    return emitOpError("(C2) expects a result of type ") << getX().getType();
  return success();
}

SmallVector<MapAttr> ScaleRowsOp::getRowMaps() {
  return {mapOf(*this, MapKind::Full), mapOf(*this, MapKind::Scalar)};
}

SmallVector<Value> ScaleRowsOp::buildRow(OpBuilder &builder,
                                         ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  Value x = arguments[0];
  return {a.mul(x, a.splat(arguments[1], x.getType()))};
}
