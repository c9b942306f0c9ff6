// SPDX-License-Identifier: MIT

// attach-tokens: makes rows of the input embedding trainable, by PEFT's rules
// for trainable_token_indices. See Passes.td for an example.

#include "compiler/Adapt/AdapterWeight.h"
#include "compiler/Passes.h"
#include "runtime/Options/AdapterTargets.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseSet.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_ATTACHTOKENS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class AttachTokensPass
    : public qlora::impl::AttachTokensBase<AttachTokensPass> {
public:
  using AttachTokensBase::AttachTokensBase;

private:
  void runOnOperation() override;
  LogicalResult attachTo(func::FuncOp function);
  LogicalResult checkTokens(EmbeddingOp embedding);
  LogicalResult checkModule(EmbeddingOp embedding);
  /// Trainable rows, and the list of their token ids.
  struct Rows {
    Value trained, list;
  };
  Rows attachToEmbedding(EmbeddingOp embedding);
  LogicalResult attachToProduct(WeightedMatmul product, Rows rows);
};
} // namespace

LogicalResult AttachTokensPass::checkTokens(EmbeddingOp embedding) {
  llvm::SmallDenseSet<int64_t> seen;
  for (int64_t token : tokens) {
    if (token < 0 || token >= embedding.getVocabulary())
      return embedding.emitError("trainable_token_indices: expects token ids "
                                 "from 0 to ")
             << embedding.getVocabulary() - 1 << ", but got " << token;
    if (!seen.insert(token).second)
      return embedding.emitError("trainable_token_indices: ")
             << token << " is listed twice; remove one";
    if (token == static_cast<int64_t>(embedding.getPadding()))
      return embedding.emitError("trainable_token_indices: ")
             << token
             << " is the padding token, whose embedding gets no gradient; "
                "remove it";
  }
  return success();
}

LogicalResult AttachTokensPass::checkModule(EmbeddingOp embedding) {
  StringRef module = embedding.getModulePath();
  std::vector<std::string> saved;
  std::string reason;
  if (!parseSavedModules(modulesToSave, saved, reason))
    return getOperation().emitError(reason);
  if (isSavedModule(module.str(), saved))
    return embedding.emitError("trainable_token_indices: '")
           << module
           << "' is in modules_to_save, which trains all of its rows; remove "
              "it there, or remove this option";
  if (getOperation().lookupSymbol(
          ("base_model.model." + module + ".lora_embedding_A").str()))
    return embedding.emitError("trainable_token_indices: '")
           << module
           << "' is in lora_target_modules; remove it there, or remove this "
              "option";
  return success();
}

/// Inserts the rows directly after the embedding, so that the model's scale and
/// noise apply to trained rows too.
AttachTokensPass::Rows
AttachTokensPass::attachToEmbedding(EmbeddingOp embedding) {
  OpBuilder b(&getContext());
  b.setInsertionPointAfter(embedding);
  Location loc = embedding.getLoc();
  Value x = embedding.getResult();
  RankedTensorType type = tensorOf(x), ids = tensorOf(embedding.getIds());
  const auto count = static_cast<int64_t>(tokens.size());
  auto listType = RankedTensorType::get({count}, b.getF32Type());
  auto list = TokenListOp::create(b, loc, listType, ArrayRef<int64_t>(tokens));
  SmallVector<int64_t> shape(ids.getShape());
  shape.push_back(count);
  auto match = MatchTokensOp::create(
      b, loc, TypeRange{listType.clone(shape), listType.clone(ids.getShape())},
      embedding.getIds(), list);
  WeightOp trained = adapterWeight(
      getOperation(), b, loc,
      embedding.getModulePath() + ".token_adapter.trainable_tokens_delta",
      {count, columnsOf(x)}, "rows");
  auto rest = ScaleRowsOp::create(b, loc, type, x, match.getRest());
  auto sum = LinearOp::create(b, loc, type, match.getMatches(), trained, rest,
                              llvm::APFloat(1.0), StringAttr(),
                              WeightLayout::InOut);
  x.replaceAllUsesExcept(sum, rest);
  for (Operation *op : {list.getOperation(), match.getOperation(),
                        trained.getOperation(), rest.getOperation(),
                        sum.getOperation()})
    copyStage(embedding, op);
  return {trained, list};
}

LogicalResult AttachTokensPass::attachToProduct(WeightedMatmul product,
                                                Rows rows) {
  OpBuilder b(product);
  auto columns = LinearOp::create(
      b, product.getLoc(), withColumns(product.getX(), tokens.size()),
      product.getX(), rows.trained, Value(), llvm::APFloat(1.0), StringAttr());
  copyStage(product, columns);
  if (product.replaceOutputs(columns, rows.list))
    return success();
  return product->emitError("trainable_token_indices: this op shares the "
                            "embedding's weight, but only an LM head may share "
                            "it; import the model again");
}

LogicalResult AttachTokensPass::attachTo(func::FuncOp function) {
  auto embeddings = llvm::filter_to_vector(
      function.front().getOps<EmbeddingOp>(), [](EmbeddingOp embedding) {
        return embedding.embedsTokens() && !isReference(embedding) &&
               !embedding.getModulePath().empty();
      });
  if (embeddings.size() != 1)
    return function.emitError("trainable_token_indices: expects one embedding "
                              "of the input 'ids', but there are ")
           << embeddings.size();
  EmbeddingOp embedding = embeddings.front();
  if (failed(checkTokens(embedding)) || failed(checkModule(embedding)))
    return failure();
  const Rows rows = attachToEmbedding(embedding);
  auto table = embedding.getTable().getDefiningOp<WeightOp>();
  for (Operation &op : llvm::make_early_inc_range(function.front())) {
    auto product = dyn_cast<WeightedMatmul>(op);
    auto weight = product ? product.getWeight().getDefiningOp<WeightOp>()
                          : WeightOp();
    if (weight && weight.getParameter() == table.getParameter() &&
        !isReference(product) && failed(attachToProduct(product, rows)))
      return failure();
  }
  return success();
}

void AttachTokensPass::runOnOperation() {
  if (tokens.empty())
    return;
  for (auto function : getOperation().getOps<func::FuncOp>())
    if (failed(attachTo(function)))
      return signalPassFailure();
}
