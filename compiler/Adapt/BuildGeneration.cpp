// SPDX-License-Identifier: MIT

// build-generation: turns copies of the forward function into the functions of
// a generation. GenerationPasses.td has an example.

#include "compiler/Passes.h"
#include "dialects/Model/Arithmetic.h"
#include "dialects/Model/Model.h"

#include "runtime/Kernels/Math/CacheInt8.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_BUILDGENERATION
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class BuildGenerationPass
    : public qlora::impl::BuildGenerationBase<BuildGenerationPass> {
public:
  using BuildGenerationBase::BuildGenerationBase;

private:
  void runOnOperation() override;
  LogicalResult rewrite(func::FuncOp function);
  LogicalResult findInputs(func::FuncOp function);
  LogicalResult replaceLoss(func::FuncOp function);
  LogicalResult recordRestart(func::FuncOp function);
  LogicalResult replaceAttention(AttentionOp attention, unsigned number);
  Value cacheRows(OpBuilder &builder, AttentionOp attention, Value rows,
                  StringRef name);
  Type cacheElement(Type compute) const;
  int64_t windowOf(AttentionOp attention) const;
  int64_t entriesFor(AttentionOp attention) const;

  int64_t slots = 0, tokens = 0; ///< of decode and of prefill
  Value slotInput, lastInput, positions, segments;
};
} // namespace

Type BuildGenerationPass::cacheElement(Type compute) const {
  Builder b(compute.getContext());
  return cacheType == "float32"    ? b.getF32Type()
         : cacheType == "bfloat16" ? b.getBF16Type()
         : cacheType == "float16"  ? b.getF16Type()
         : cacheType == "int8"     ? b.getI8Type()
                                   : compute;
}

/// Returns the window of an attention; 0 if a window has all tokens of a row.
int64_t BuildGenerationPass::windowOf(AttentionOp attention) const {
  const auto window = static_cast<int64_t>(attention.getWindow());
  return window < entries ? window : 0;
}

/// Returns the entries of a slot. While a prefill runs, a window needs the rows
/// before its first token and those of all its tokens.
int64_t BuildGenerationPass::entriesFor(AttentionOp attention) const {
  const int64_t window = windowOf(attention);
  return window > 0 ? window + tokens - 1 : int64_t(entries);
}

/// Adds the inputs of a generation, and finds those that the forward has.
LogicalResult BuildGenerationPass::findInputs(func::FuncOp function) {
  positions = segments = {};
  for (BlockArgument argument : function.getArguments()) {
    auto input = function.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                       "model.input");
    if (input && input.getValue() == "positions")
      positions = argument;
    if (input && input.getValue() == "segments")
      segments = argument;
  }
  if (!positions || !segments)
    return function.emitOpError("expects the inputs positions and segments, "
                                "which generation needs");
  auto add = [&](StringRef name, Type type) {
    const unsigned index = function.getNumArguments();
    Builder b(&getContext());
    auto attributes =
        b.getDictionaryAttr(b.getNamedAttr("model.input",
                                           b.getStringAttr(name)));
    (void)function.insertArgument(index, type, attributes, function.getLoc());
    return function.getArgument(index);
  };
  RankedTensorType type = tensorOf(positions);
  slotInput = add("slots", type);
  lastInput = add("last", type.clone({type.getDimSize(0)}));
  return success();
}

/// Returns the cache with the new rows. Decode and prefill share the cache.
Value BuildGenerationPass::cacheRows(OpBuilder &builder, AttentionOp attention,
                                     Value rows, StringRef name) {
  Type element = cacheElement(tensorOf(rows).getElementType());
  const int64_t columns =
      element.isInteger(8)
          ? int8CacheColumns(columnsOf(rows), attention.getKvHeads())
          : columnsOf(rows);
  auto type = RankedTensorType::get(
      {slots, entriesFor(attention), columns}, element);
  if (!getOperation().lookupSymbol(name)) {
    OpBuilder top = OpBuilder::atBlockBegin(getOperation().getBody());
    CacheOp::create(top, attention.getLoc(), name, type);
  }
  return CacheRowsOp::create(
      builder, attention.getLoc(), type, name, rows, slotInput, positions,
      segments, attention.getLayer());
}

LogicalResult BuildGenerationPass::replaceAttention(AttentionOp attention,
                                                    unsigned number) {
  if (cacheType == "int8" && attention.getHeadDim() % kCacheScaleBytes)
    return attention.emitOpError("has heads of ")
           << attention.getHeadDim()
           << " dimensions, but an int8 cache needs a multiple of 4. Fix: use "
              "another --kv-cache-dtype";
  OpBuilder builder(attention);
  const std::string prefix = ("attention." + Twine(number)).str();
  Value keys =
      cacheRows(builder, attention, attention.getK(), prefix + ".keys");
  Value values =
      cacheRows(builder, attention, attention.getV(), prefix + ".values");
  auto cached = CachedAttentionOp::create(
      builder, attention.getLoc(), attention.getResult().getType(),
      attention.getQ(), keys, values, slotInput, positions, segments,
      attention.getSinks(), attention.getHeads(), attention.getKvHeads(),
      attention.getHeadDim(), windowOf(attention), attention.getScale(),
      attention.getCap(), attention.getLayer());
  attention.getResult().replaceAllUsesWith(cached);
  attention.erase();
  return success();
}

/// Returns cap * tanh(logits / cap).
static Value capLogits(OpBuilder &builder, Location loc, Value logits,
                       double cap) {
  Operation *head = logits.getDefiningOp();
  return buildRows(builder, loc, {logits.getType()}, {logits},
                   columnsOf(logits), {mapOf(head, MapKind::Full)}, "cap",
                   [&](OpBuilder &b, ValueRange arguments) {
                     Arithmetic a(b, loc);
                     Value scaled = a.times(arguments[0], 1 / cap);
                     Value bounded = math::TanhOp::create(b, loc, scaled);
                     return SmallVector<Value>{a.times(bounded, cap)};
                   })
      ->getResult(0);
}

/// Returns the rows in f32 if the loss would multiply them in f32: it rounds
/// weights of the LM head to bf16 only if they are stored so.
static Value widenForHead(OpBuilder &builder, Value rows, Value weight) {
  if (tensorOf(rows).getElementType() == tensorOf(weight).getElementType() ||
      tensorOf(rows).getElementType().isF32())
    return rows;
  auto type = tensorOf(rows).clone(builder.getF32Type());
  return buildRows(builder, rows.getLoc(), {type}, {rows}, columnsOf(rows),
                   {mapOf(rows.getDefiningOp(), MapKind::Full)}, "widen",
                   [](OpBuilder &, ValueRange arguments) {
                     return SmallVector<Value>{arguments[0]};
                   })
      ->getResult(0);
}

/// Replaces the loss by the logits of each row's last token, in f32.
LogicalResult BuildGenerationPass::replaceLoss(func::FuncOp function) {
  auto heads = llvm::to_vector(function.getOps<HeadLossOp>());
  Operation *end = function.front().getTerminator();
  if (heads.size() != 1)
    return function.emitOpError("expects one LM head for generation, but "
                                "has ")
           << heads.size() << ". Fix: remove --generation-batch";
  HeadLossOp head = heads.front();
  if (!head.getReplaced().empty())
    return head.emitOpError(
        "does not support generation with trained tokens of a tied LM head. "
        "Fix: remove --generation-batch, or use --modules-to-save instead of "
        "--trainable-token-indices");
  OpBuilder builder(head);
  Value hidden = head.getHidden();
  auto picked = PickTokensOp::create(builder, head.getLoc(),
                                     withLength(tensorOf(hidden), 1, 1),
                                     hidden, lastInput);
  auto type = RankedTensorType::get(
      {tensorOf(hidden).getDimSize(0), 1,
       tensorOf(head.getWeight()).getDimSize(0)},
      builder.getF32Type());
  Value rows = widenForHead(builder, picked, head.getWeight());
  Value logits = LinearOp::create(builder, head.getLoc(), type, rows,
                                  head.getWeight(), Value(),
                                  llvm::APFloat(1.0), StringAttr());
  const double cap = head.getCap().convertToDouble();
  if (cap != 0)
    logits = capLogits(builder, head.getLoc(), logits, cap);
  end->setOperands(logits);
  function.setFunctionType(
      FunctionType::get(&getContext(), function.front().getArgumentTypes(),
                        end->getOperandTypes()));
  return success();
}

/// Records from which length on RoPE has other frequencies, so that all cached
/// values of a row must be recomputed.
LogicalResult BuildGenerationPass::recordRestart(func::FuncOp function) {
  for (auto table : function.getOps<RopeTableOp>()) {
    const auto original = static_cast<int64_t>(table.getOriginalLength());
    if (!table.getLengths() || original >= entries)
      continue;
    if (!table.getLongFrequencies())
      return table.emitOpError("does not support generation of rows with more "
                               "than ")
             << original << " tokens, because each token changes the angles of "
             << "all others (rope_type dynamic). Fix: --generation-length "
             << original << " or less";
    getOperation()->setAttr(kRestartLengthAttr,
                            Builder(&getContext()).getI64IntegerAttr(original));
  }
  return success();
}

LogicalResult BuildGenerationPass::rewrite(func::FuncOp function) {
  for (Operation &op : llvm::make_early_inc_range(function.front()))
    if (op.hasTrait<TrainingOnly>()) {
      op.getResult(0).replaceAllUsesWith(op.getOperand(0));
      op.erase();
    }
  if (failed(findInputs(function)) || failed(replaceLoss(function)) ||
      failed(recordRestart(function)))
    return failure();
  unsigned number = 0;
  for (AttentionOp attention : llvm::to_vector(function.getOps<AttentionOp>()))
    if (failed(replaceAttention(attention, number++)))
      return failure();
  for (Operation &op :
       llvm::make_early_inc_range(llvm::reverse(function.front())))
    if (isOpTriviallyDead(&op))
      op.erase();
  return success();
}

void BuildGenerationPass::runOnOperation() {
  SmallVector<func::FuncOp> functions;
  for (auto function : getOperation().getOps<func::FuncOp>()) {
    auto step = function->getAttrOfType<StringAttr>(kStepAttr);
    if (!step)
      continue;
    functions.push_back(function);
    (step.getValue() == "decode" ? slots : tokens) =
        numberOf(function, step.getValue() == "decode" ? "model.batch"
                                                       : "model.length");
  }
  for (func::FuncOp function : functions)
    if (failed(rewrite(function)))
      return signalPassFailure();
}
