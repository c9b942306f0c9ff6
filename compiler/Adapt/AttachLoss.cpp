// SPDX-License-Identifier: MIT

// attach-loss: replaces a forward function's loss by a preference loss, or by
// another loss of tokens.
// See Passes.td for an example.

#include "compiler/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_ATTACHLOSS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

/// A function's loss op, its loss sum and label count, and other results.
struct Head {
  LossOp op;
  Value losses, labels;
  SmallVector<Value> others;
};

class AttachLossPass : public qlora::impl::AttachLossBase<AttachLossPass> {
public:
  using AttachLossBase::AttachLossBase;

private:
  void runOnOperation() override;
  LogicalResult attachTo(func::FuncOp function);
  LogicalResult setTokenLoss(func::FuncOp function);
  FailureOr<LossOp> build(OpBuilder &builder, func::FuncOp function,
                          const Head &head);
  FailureOr<LossOp> buildDpo(OpBuilder &builder, func::FuncOp function,
                             const Head &head);
  FailureOr<LossOp> buildKto(OpBuilder &builder, func::FuncOp function,
                             const Head &head);
  FailureOr<LossOp> buildOrpo(OpBuilder &builder, func::FuncOp function,
                              const Head &head);
};

} // namespace

/// `option` is named if there are several losses.
static FailureOr<Head> headOf(func::FuncOp function, StringRef option) {
  Operation *end = function.front().getTerminator();
  Head head;
  for (Value value : end->getOperands()) {
    auto loss = value.getDefiningOp<LossOp>();
    if (!loss || (head.op && loss != head.op))
      return end->emitError(option)
             << " needs a model without a router loss; set "
                "'output_router_logits' to false in its config.json and import "
                "it again";
    head.op = loss;
    StringRef name = loss.getReadName(cast<OpResult>(value).getResultNumber());
    if (name == "loss_sum")
      head.losses = value;
    else if (name == "label_count")
      head.labels = value;
    else
      head.others.push_back(value);
  }
  if (!head.losses || !head.labels)
    return end->emitOpError("expects a loss_sum and a label_count");
  return head;
}

/// Clones the function's ops, without training-only ops, to its start as the
/// reference model. Returns the copy of `value`.
static Value cloneReference(func::FuncOp function, Value value) {
  SmallVector<Operation *> ops = llvm::map_to_vector(
      function.front().without_terminator(), [](Operation &op) { return &op; });
  OpBuilder builder(ops.front());
  IRMapping mapping;
  for (Operation *op : ops) {
    if (op->hasTrait<TrainingOnly>())
      mapping.map(op->getResult(0), mapping.lookupOrDefault(op->getOperand(0)));
    else
      setPhase(builder.clone(*op, mapping), StepPhase::Reference);
  }
  return mapping.lookup(value);
}

/// Appends a function argument.
static FailureOr<Value> addInput(func::FuncOp function, StringRef name,
                                 Type type) {
  Builder builder(function.getContext());
  const unsigned number = function.getNumArguments();
  DictionaryAttr input = builder.getDictionaryAttr(
      builder.getNamedAttr("model.input", builder.getStringAttr(name)));
  if (failed(function.insertArgument(number, type, input, function.getLoc())))
    return failure();
  return Value(function.getArgument(number));
}

FailureOr<LossOp> AttachLossPass::buildDpo(OpBuilder &builder,
                                           func::FuncOp function,
                                           const Head &head) {
  Value reference =
      objective == "dpo" ? cloneReference(function, head.losses) : Value();
  SmallVector<StringRef> words(kinds.begin(), kinds.end());
  if (words.empty())
    words.push_back("sigmoid");
  SmallVector<double> each(weights.begin(), weights.end());
  if (each.empty())
    each.assign(words.size(), 1);
  auto loss = DpoLossOp::create(
      builder, function.getLoc(), DpoLossOp::typesOf(head.losses), head.losses,
      head.labels, reference, llvm::APFloat(double(beta)),
      builder.getStrArrayAttr(words), each,
      llvm::APFloat(double(labelSmoothing)), llvm::APFloat(double(tau)),
      llvm::APFloat(double(gamma)));
  return cast<LossOp>(loss.getOperation());
}

FailureOr<LossOp> AttachLossPass::buildKto(OpBuilder &builder,
                                           func::FuncOp function,
                                           const Head &head) {
  Value reference = cloneReference(function, head.losses);
  FailureOr<Value> desirable =
      addInput(function, "desirable", head.losses.getType());
  if (failed(desirable))
    return failure();
  auto loss = KtoLossOp::create(
      builder, function.getLoc(), KtoLossOp::typesOf(head.losses), head.losses,
      head.labels, reference, *desirable, llvm::APFloat(double(beta)),
      llvm::APFloat(double(desirableWeight)),
      llvm::APFloat(double(undesirableWeight)), mismatched);
  return cast<LossOp>(loss.getOperation());
}

FailureOr<LossOp> AttachLossPass::buildOrpo(OpBuilder &builder,
                                            func::FuncOp function,
                                            const Head &head) {
  IRMapping mapping;
  for (BlockArgument argument : function.getArguments()) {
    auto input = function.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                       "model.input");
    if (!input || input.getValue() != "targets")
      continue;
    FailureOr<Value> prompts =
        addInput(function, "prompts", argument.getType());
    if (failed(prompts))
      return failure();
    mapping.map(argument, *prompts);
    break;
  }
  if (mapping.getValueMap().empty())
    return function.emitOpError("has no input 'targets'");
  builder.clone(*head.op, mapping);
  auto loss = OrpoLossOp::create(
      builder, function.getLoc(), OrpoLossOp::typesOf(head.losses), head.losses,
      head.labels, mapping.lookup(head.losses), mapping.lookup(head.labels),
      llvm::APFloat(double(beta)));
  return cast<LossOp>(loss.getOperation());
}

FailureOr<LossOp> AttachLossPass::build(OpBuilder &builder,
                                        func::FuncOp function,
                                        const Head &head) {
  if (objective == "kto")
    return buildKto(builder, function, head);
  if (objective == "orpo")
    return buildOrpo(builder, function, head);
  return buildDpo(builder, function, head);
}

LogicalResult AttachLossPass::setTokenLoss(func::FuncOp function) {
  // Peer tools leave a router loss out if they smooth labels.
  if (labelSmoothing != 0 &&
      failed(headOf(function, "--label-smoothing-factor")))
    return failure();
  for (HeadLossOp head : function.getOps<HeadLossOp>()) {
    head.setOwnProbability(llvm::is_contained(kinds, "dft"));
    if (labelSmoothing != 0)
      head.setLabelSmoothing(llvm::APFloat(double(labelSmoothing)));
  }
  return success();
}

LogicalResult AttachLossPass::attachTo(func::FuncOp function) {
  if (objective == "none")
    return setTokenLoss(function);
  FailureOr<Head> head = headOf(function, "--rl");
  if (failed(head))
    return failure();
  auto input = cast<RankedTensorType>(function.getArgument(0).getType());
  auto lines = RankedTensorType::get({input.getDimSize(0)},
                                     Float32Type::get(&getContext()));
  head->losses.setType(lines);
  head->labels.setType(lines);
  Operation *end = function.front().getTerminator();
  OpBuilder builder(end);
  FailureOr<LossOp> loss = build(builder, function, *head);
  if (failed(loss))
    return failure();
  SmallVector<Value> results;
  for (OpResult result : (*loss)->getResults())
    if (!loss->getReadName(result.getResultNumber()).empty())
      results.push_back(result);
  results.append(head->others);
  end->setOperands(results);
  function.setFunctionType(
      FunctionType::get(&getContext(), function.front().getArgumentTypes(),
                        end->getOperandTypes()));
  return success();
}

void AttachLossPass::runOnOperation() {
  if (objective != "none" && objective != "dpo" && objective != "cpo" &&
      objective != "kto" && objective != "orpo") {
    getOperation().emitError(
        "expects none, dpo, cpo, kto or orpo as objective, but got '")
        << objective << "'";
    return signalPassFailure();
  }
  for (auto function : getOperation().getOps<func::FuncOp>())
    if (failed(attachTo(function)))
      return signalPassFailure();
}
