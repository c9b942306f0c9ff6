// SPDX-License-Identifier: MIT

// attach-adapters: adds LoRA branches to the target modules (Hu et al., 2021),
// by PEFT's rules. See Passes.td for an example.

#include "compiler/Adapt/AdapterForms.h"
#include "compiler/Adapt/AdapterTargetChecks.h"
#include "compiler/Adapt/AdapterWeight.h"
#include "compiler/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_ATTACHADAPTERS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

class AttachAdaptersPass
    : public qlora::impl::AttachAdaptersBase<AttachAdaptersPass> {
public:
  using AttachAdaptersBase::AttachAdaptersBase;

private:
  void runOnOperation() override;
  LogicalResult parseOptions();
  LogicalResult attachTo(func::FuncOp function);
  void attach(WeightedMatmul product, DenseMap<Value, Value> &dropped);
  Value dropoutOf(WeightedMatmul product, DenseMap<Value, Value> &dropped);
  void recordDropout(WeightOp weightA, DropoutOp dropoutOp);
  double scaleOf(StringRef module) const;
  LinearOp addBranch(OpBuilder &builder, Value y, Value narrow,
                     StringRef module, const Twine &nameB, StringRef initialB);
  int64_t rankOf(StringRef module) const;
  LogicalResult parseTargets();
  bool isTarget(StringRef module) const;
  void attachToEmbedding(EmbeddingOp embedding);

  Targets matcher;
  std::optional<Targets> excluded;
  ValuePatterns ranks, alphas;
  std::vector<std::string> saved;
  /// Entries of kAdapterDropoutAttr and of kAdapterFactorsAttr.
  NamedAttrList recorded, factors;
};

} // namespace

LogicalResult AttachAdaptersPass::parseTargets() {
  matcher = Targets();
  excluded.reset();
  std::string error;
  auto fail = [&](StringRef option) {
    return getOperation().emitError(option) << ": " << error;
  };
  if (!matcher.parse(targets, error))
    return fail("lora_target_modules");
  if (!matcher.parseLayers(layers, layersPattern, error))
    return getOperation().emitError(error);
  if (exclude != "[]" && !excluded.emplace().parse(exclude, error))
    return fail("exclude_modules");
  return success();
}

bool AttachAdaptersPass::isTarget(StringRef module) const {
  const std::string path = module.str();
  return matcher.matches(path) && !isSavedModule(path, saved) &&
         !(excluded && excluded->matches(path));
}

LogicalResult AttachAdaptersPass::parseOptions() {
  if (failed(parseTargets()))
    return failure();
  ranks = alphas = ValuePatterns();
  recorded.clear();
  factors.clear();
  std::string error;
  auto fail = [&](StringRef option) {
    return getOperation().emitError(option) << ": " << error;
  };
  if (!ranks.parse(rankPattern, error))
    return fail("lora_rank_pattern");
  if (!alphas.parse(alphaPattern, error))
    return fail("lora_alpha_pattern");
  if (auto wrong = ranks.findNoRank())
    return getOperation().emitError("lora_rank_pattern: expects a whole number "
                                    "of at least 1 for '")
           << wrong->first << "', but got " << wrong->second;
  if (!parseSavedModules(modulesToSave, saved, error))
    return getOperation().emitError(error);
  if (rank < 1)
    return getOperation().emitError("lora_r: expects at least 1, but got ")
           << int64_t(rank);
  if (dropout < 0 || dropout >= 1)
    return getOperation().emitError("lora_dropout: expects 0 <= p < 1, but "
                                    "got ")
           << dropout;
  return success();
}

/// Returns the matmuls that can have an adapter, in order.
static SmallVector<WeightedMatmul> productsOf(func::FuncOp function) {
  SmallVector<WeightedMatmul> products;
  for (Operation &op : function.front())
    if (auto product = dyn_cast<WeightedMatmul>(op);
        product && product.getModule() && product.getProduct() &&
        !product.getGroupOffsets() && !isReference(product))
      products.push_back(product);
  return products;
}

/// Returns the embeddings that can have an adapter, not lookups in adapters.
static SmallVector<EmbeddingOp> embeddingsOf(func::FuncOp function) {
  return llvm::filter_to_vector(
      function.front().getOps<EmbeddingOp>(), [](EmbeddingOp embedding) {
        return !embedding.getModulePath().empty() && !isReference(embedding);
      });
}

/// Returns x after dropout: one mask for all matmuls that read the same x.
Value AttachAdaptersPass::dropoutOf(WeightedMatmul product,
                                    DenseMap<Value, Value> &dropped) {
  Value x = product.getX();
  if (dropout == 0)
    return x;
  Value &value = dropped[x];
  if (!value) {
    OpBuilder builder(product);
    auto op = DropoutOp::create(builder, product.getLoc(), x.getType(), x,
                                llvm::APFloat(double(dropout)),
                                static_cast<uint64_t>(dropped.size()));
    copyStage(product, op);
    value = op;
  }
  return value;
}

/// Records the adapter's dropout for the runtime, once for all lengths.
void AttachAdaptersPass::recordDropout(WeightOp weightA, DropoutOp dropoutOp) {
  Builder builder(&getContext());
  recorded.set(weightA.getParameter(),
               builder.getDictionaryAttr(
                   {builder.getNamedAttr("op", dropoutOp.getIdAttr()),
                    builder.getNamedAttr("probability",
                                         dropoutOp.getProbabilityAttr())}));
}

int64_t AttachAdaptersPass::rankOf(StringRef module) const {
  return static_cast<int64_t>(ranks.lookup(module.str()).value_or(rank));
}

double AttachAdaptersPass::scaleOf(StringRef module) const {
  return loraScale(alphas.lookup(module.str()).value_or(alpha), rankOf(module),
                   rslora);
}

/// Replaces y by y + scale * B . narrow, where narrow is A x. Returns the
/// matmul with B.
LinearOp AttachAdaptersPass::addBranch(OpBuilder &builder, Value y,
                                       Value narrow, StringRef module,
                                       const Twine &nameB, StringRef initialB) {
  const int64_t r = rankOf(module);
  Operation *const base = y.getDefiningOp();
  Location loc = base->getLoc();
  auto type = cast<RankedTensorType>(y.getType());
  WeightOp weightB = adapterWeight(getOperation(), builder, loc, nameB,
                                   {type.getShape().back(), r}, initialB);
  auto branch = LinearOp::create(builder, loc, type, narrow, weightB, Value(),
                                 llvm::APFloat(scaleOf(module)), StringAttr());
  auto sum = model::AddOp::create(builder, loc, type, y, branch);
  y.replaceAllUsesExcept(sum, sum);
  for (Operation *op : {narrow.getDefiningOp(), branch.getOperation(),
                        sum.getOperation()})
    copyStage(base, op);
  return branch;
}

/// Adds an adapter to a matmul. A and B are [out, in], whatever W's layout.
void AttachAdaptersPass::attach(WeightedMatmul product,
                                DenseMap<Value, Value> &dropped) {
  StringRef module = *product.getModule();
  const int64_t r = rankOf(module);
  Value y = product.getProduct(), x = dropoutOf(product, dropped);
  OpBuilder builder(product->getContext());
  builder.setInsertionPointAfter(product);
  Location loc = product.getLoc();
  WeightOp weightA =
      adapterWeight(getOperation(), builder, loc, module + ".lora_A.weight",
                    {r, product.getInWidth()}, initA);
  if (dropout != 0)
    recordDropout(weightA, x.getDefiningOp<DropoutOp>());
  auto xa = LinearOp::create(builder, loc, withColumns(y, r), x, weightA,
                             Value(), llvm::APFloat(1.0), StringAttr());
  LinearOp branch =
      addBranch(builder, y, xa, module, module + ".lora_B.weight", initB);
  if (bias)
    addAdapterBias(getOperation(), branch, module);
  if (dora)
    addMagnitude(getOperation(), product, x, weightA, branch);
}

/// Adds an adapter. As in PEFT, it has no dropout, and a random B. A is zero if
/// the adapters of linears start with B = 0, else random too.
void AttachAdaptersPass::attachToEmbedding(EmbeddingOp embedding) {
  StringRef module = embedding.getModulePath();
  const int64_t r = rankOf(module);
  Value y = embedding.getResult();
  OpBuilder builder(&getContext());
  builder.setInsertionPointAfter(embedding);
  Location loc = embedding.getLoc();
  const bool startsAtBase = initB == "zero";
  WeightOp weightA = adapterWeight(
      getOperation(), builder, loc, module + ".lora_embedding_A",
      {r, embedding.getVocabulary()}, startsAtBase ? "zero" : "normal");
  auto xa =
      EmbeddingOp::create(builder, loc, withColumns(y, r), embedding.getIds(),
                          weightA, embedding.getPadding(), WeightLayout::OutIn);
  addBranch(builder, y, xa, module, module + ".lora_embedding_B", "normal");
}

LogicalResult AttachAdaptersPass::attachTo(func::FuncOp function) {
  SmallVector<WeightedMatmul> linears;
  llvm::SetVector<StringRef> names;
  for (WeightedMatmul product : productsOf(function)) {
    StringRef module = *product.getModule();
    names.insert(module.substr(module.rfind('.') + 1));
    if (isTarget(module))
      linears.push_back(product);
  }
  SmallVector<EmbeddingOp> embeddings;
  if (!matcher.isAllLinear()) // all-linear excludes embeddings
    embeddings = llvm::filter_to_vector(
        embeddingsOf(function),
        [&](EmbeddingOp op) { return isTarget(op.getModulePath()); });
  if ((dora || bias || initA == "factor") && !embeddings.empty())
    return getOperation().emitError("lora_target_modules: '")
           << embeddings.front().getModulePath()
           << "' is an embedding, which does not support use_dora, lora_bias "
              "or init_lora_weights pissa, olora and loftq; remove it";
  if (linears.empty() && embeddings.empty())
    return getOperation().emitError("lora_target_modules: ")
           << targets << " matches no linear; there are: "
           << llvm::join(names, ", ");
  DenseMap<Value, Value> dropped;
  for (WeightedMatmul linear : linears) {
    StringRef module = *linear.getModule();
    if (initA == "factor" &&
        failed(recordLoraInitFactors(getOperation(), linear, rankOf(module),
                                     scaleOf(module), factors)))
      return failure();
    attach(linear, dropped);
  }
  for (EmbeddingOp embedding : embeddings)
    attachToEmbedding(embedding);
  return success();
}

void AttachAdaptersPass::runOnOperation() {
  if (failed(parseOptions()))
    return signalPassFailure();
  bool isFirst = true;
  for (auto function : getOperation().getOps<func::FuncOp>()) {
    // All functions are the same model, so names are checked once.
    if (isFirst && failed(checkTargetNames(
                       getOperation(), findModules(getOperation(), function),
                       {matcher, saved, excluded ? &*excluded : nullptr,
                        targets, exclude})))
      return signalPassFailure();
    isFirst = false;
    if (failed(attachTo(function)))
      return signalPassFailure();
  }
  // Replace attributes of adapters that an earlier run of the pass attached.
  for (auto [name, facts] : {std::pair(kAdapterDropoutAttr, &recorded),
                             std::pair(kAdapterFactorsAttr, &factors)}) {
    getOperation()->removeAttr(name);
    if (!facts->empty())
      getOperation()->setAttr(name, facts->getDictionary(&getContext()));
  }
}
