// SPDX-License-Identifier: MIT

// build-train-step: converts forward functions to train.steps by reverse mode.
//
//   func.func @forward_2x32(%ids, ...) { ... return %loss, %count, %correct }
//
// becomes
//
//   train.step accumulate batch 2 length 32 { forward; backward;
//     train.accumulate @p, %dp ... }
//                             // if sharded: train.scatter_gradient first
//   train.step evaluate batch 2 length 32 { forward }
//   train.step update { clip_norm, one update per group, clear }
//
// Functions of build-generation become train.step prefill and decode. If
// trainable parameters are initialized from other weights, there is also
//
//   train.step initialize { train.initialize @p, %first }
//
// and, if an optimizer trains other weights than evaluation uses, `average` and
// `continue`, which convert between the two.

#include "compiler/Differentiate/UpdateStep.h"
#include "compiler/Passes.h"
#include "dialects/Program/Program.h"
#include "dialects/Train/Optimizers.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace qlora::model;
using namespace qlora::train;

namespace qlora {
#define GEN_PASS_DEF_BUILDTRAINSTEP
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

/// Marks new ops as backward, in the layer of the forward op that they
/// differentiate.
class BackwardMarker : public OpBuilder::Listener {
public:
  void notifyOperationInserted(Operation *op, OpBuilder::InsertPoint) override {
    setPhase(op, StepPhase::Backward);
    if (current)
      setLayer(op, layerOf(current));
  }
  Operation *current = nullptr;
};

/// The forward part of a step, cloned from a forward function.
struct Forward {
  StepOp step;
  SmallVector<Operation *> ops;
  SmallVector<Value> results; ///< of the function
};

class BuildTrainStepPass
    : public qlora::impl::BuildTrainStepBase<BuildTrainStepPass> {
public:
  using BuildTrainStepBase::BuildTrainStepBase;

private:
  void runOnOperation() override;
  Forward cloneForward(OpBuilder &builder, func::FuncOp function,
                       StepKind kind);
  LogicalResult buildAccumulate(OpBuilder &builder, func::FuncOp function);
  void buildEvaluate(OpBuilder &builder, func::FuncOp function);
  void buildGeneration(OpBuilder &builder, func::FuncOp function);
  void buildInitialize(OpBuilder &builder, func::FuncOp function);
  void accumulate(OpBuilder &builder, WeightOp weight, Value gradient);
  void addTravelled(OpBuilder &builder);
  bool isTrainable(Operation *op) const;
  LogicalResult findWanted(ArrayRef<Operation *> ops, Tape &tape) const;

  /// Keyed by weight name.
  llvm::DenseMap<Attribute, ParameterOp> trainable;
  ScatterGradientOp travelling; ///< its result is not accumulated yet
};

} // namespace

static bool isOfGeneration(func::FuncOp function) {
  return function->hasAttr(kStepAttr);
}

/// Returns the names of the function's results that the runtime reads.
static SmallVector<StringRef> readNames(func::FuncOp function) {
  return llvm::map_to_vector(
      function.front().getTerminator()->getOperands(), [](Value value) {
        auto loss = value.getDefiningOp<LossOp>();
        return loss ? loss.getReadName(cast<OpResult>(value).getResultNumber())
                    : StringRef();
      });
}

/// Checks that each argument of the function is an input of the runtime.
static LogicalResult checkInputs(func::FuncOp function) {
  if (!function->hasAttr("model.batch") || !function->hasAttr("model.length"))
    return function.emitOpError("has no model.batch and model.length, which "
                                "specialize-shapes writes");
  StringSet<> seen;
  for (unsigned i = 0; i < function.getNumArguments(); ++i) {
    auto input = function.getArgAttrOfType<StringAttr>(i, "model.input");
    if (!input || !llvm::is_contained(kStepInputs, input.getValue()))
      return function.emitOpError("argument ")
             << i << " expects one of "
             << llvm::join(ArrayRef(kStepInputs), ", ") << " as model.input";
    if (!seen.insert(input.getValue()).second)
      return function.emitOpError("has two arguments for the input '")
             << input.getValue() << "'";
    const bool isOfSequences = isPerSequence(input.getValue());
    const bool isFloat = input.getValue() == "desirable";
    auto type = dyn_cast<RankedTensorType>(function.getArgument(i).getType());
    if (!type || type.getRank() != (isOfSequences ? 1 : 2) ||
        !(isFloat ? type.getElementType().isF32()
                  : type.getElementType().isInteger(32)))
      return function.emitOpError("argument ")
             << i << " expects a type of "
             << (isOfSequences ? "[B] " : "[B, T] ")
             << (isFloat ? "f32" : "i32") << ", but got "
             << function.getArgument(i).getType();
  }
  return success();
}

/// Checks that the runtime can call the forward: its results are a loss, the
/// loss's count, and other known results.
static LogicalResult checkForward(func::FuncOp function) {
  const SmallVector<StringRef> names = readNames(function);
  StringSet<> read;
  if (names.size() < 2 || names[0] != "loss_sum" || names[1] != "label_count" ||
      !llvm::all_of(names, [&](StringRef name) {
        return !name.empty() && read.insert(name).second;
      }))
    return function.front().getTerminator()->emitOpError(
        "expects the results of a loss: loss_sum, label_count, and others that "
        "the runtime reads, each once");
  return success();
}

Forward BuildTrainStepPass::cloneForward(OpBuilder &builder,
                                         func::FuncOp function, StepKind kind) {
  SmallVector<StringRef> inputs;
  for (unsigned i = 0; i < function.getNumArguments(); ++i)
    inputs.push_back(
        function.getArgAttrOfType<StringAttr>(i, "model.input").getValue());
  Forward forward;
  forward.step = StepOp::create(
      builder, function.getLoc(), kind,
      function->getAttrOfType<IntegerAttr>("model.batch").getInt(),
      function->getAttrOfType<IntegerAttr>("model.length").getInt(),
      builder.getStrArrayAttr(inputs));
  Block &block = forward.step.getBody().emplaceBlock();
  IRMapping mapping;
  for (BlockArgument argument : function.getArguments())
    mapping.map(argument,
                block.addArgument(argument.getType(), argument.getLoc()));
  OpBuilder inner = OpBuilder::atBlockEnd(&block);
  for (Operation &op : function.front().without_terminator()) {
    if (kind == StepKind::Evaluate && op.hasTrait<TrainingOnly>()) {
      mapping.map(op.getResult(0), mapping.lookup(op.getOperand(0)));
      continue;
    }
    forward.ops.push_back(inner.clone(op, mapping));
  }
  for (Value value : function.front().getTerminator()->getOperands())
    forward.results.push_back(mapping.lookup(value));
  return forward;
}

bool BuildTrainStepPass::isTrainable(Operation *op) const {
  auto weight = dyn_cast<WeightOp>(op);
  return weight && trainable.contains(weight.getParameterAttr());
}

/// Returns whether the op exchanges gradients with another pipeline stage. Only
/// model.send and model.receive have results for which isWanted() is true.
static bool isAskedFor(Differentiable rule) {
  return llvm::any_of(rule->getResults(), [&](OpResult result) {
    return rule.isWanted(result.getResultNumber());
  });
}

/// Marks every value that depends on a trainable parameter.
LogicalResult BuildTrainStepPass::findWanted(ArrayRef<Operation *> ops,
                                             Tape &tape) const {
  for (Operation *op : ops) {
    if (isa<DetachedOp>(op))
      continue;
    bool reads = llvm::any_of(op->getOperands(),
                              [&](Value v) { return tape.needs(v); });
    if (reads && !isa<Differentiable>(op))
      return op->emitOpError("has no derivative, but depends on a trainable "
                             "parameter");
    auto rule = dyn_cast<Differentiable>(op);
    for (OpResult result : op->getResults())
      if (reads || isTrainable(op) ||
          (rule && rule.isWanted(result.getResultNumber())))
        tape.want(result);
  }
  return success();
}

static SmallVector<Operation *> emitResults(OpBuilder &builder, Location loc,
                                            ArrayRef<StringRef> names,
                                            ArrayRef<Value> values,
                                            bool accumulate) {
  SmallVector<Operation *> results;
  for (auto [name, value] : llvm::zip_equal(names, values))
    results.push_back(ResultOp::create(builder, loc, name, value,
                                       accumulate && name != "correct"));
  return results;
}

/// Adds a gradient. A sharded gradient's reduce-scatter overlaps the backward:
/// each rank adds its shard only when the next sharded gradient is ready.
void BuildTrainStepPass::accumulate(OpBuilder &builder, WeightOp weight,
                                    Value gradient) {
  const FlatSymbolRefAttr name = weight.getParameterAttr();
  ParameterOp parameter = trainable.lookup(name);
  if (!parameter.getPiece()) {
    qlora::train::AccumulateOp::create(builder, weight.getLoc(), name, gradient,
                                       weight.getPartAttr());
    return;
  }
  addTravelled(builder);
  travelling = ScatterGradientOp::create(
      builder, weight.getLoc(),
      RankedTensorType::get({flatElements(parameter)}, builder.getF32Type()),
      name, gradient);
}

void BuildTrainStepPass::addTravelled(OpBuilder &builder) {
  if (travelling)
    qlora::train::AccumulateOp::create(builder, travelling.getLoc(),
                                       travelling.getParameterAttr(),
                                       travelling.getResult(), PartAttr());
  travelling = {};
}

LogicalResult BuildTrainStepPass::buildAccumulate(OpBuilder &builder,
                                                  func::FuncOp function) {
  Forward forward = cloneForward(builder, function, StepKind::Accumulate);
  BackwardMarker marker;
  OpBuilder backward = OpBuilder::atBlockEnd(&forward.step.getBody().front());
  backward.setListener(&marker);
  Tape tape(backward);
  if (failed(findWanted(forward.ops, tape)))
    return failure();
  SmallVector<Operation *> results = emitResults(
      backward, function.getLoc(), readNames(function), forward.results, true);
  Operation *lossOp = forward.results.front().getDefiningOp();
  DenseSet<Operation *> losses;
  for (Value result : forward.results)
    losses.insert(result.getDefiningOp());
  DenseSet<Attribute> reached;
  for (Operation *op : llvm::reverse(forward.ops)) {
    marker.current = op;
    bool flows = llvm::any_of(op->getResults(),
                              [&](Value v) { return tape.lookup(v); });
    if (auto rule = dyn_cast<Differentiable>(op);
        rule && (flows || losses.contains(op) || isAskedFor(rule)))
      if (failed(rule.buildGradient(tape)))
        return failure();
    // Results must follow the gradient op, which may compute the loss itself.
    if (op == lossOp)
      for (Operation *result : results)
        result->moveBefore(result->getBlock(), result->getBlock()->end());
    // Accumulate at once, even if another op reads the weight too (tied
    // weights), so that no weight-sized gradient stays alive.
    for (Value operand : op->getOperands()) {
      auto weight = operand.getDefiningOp<WeightOp>();
      Value gradient = weight && isTrainable(weight) ? tape.take(operand)
                                                     : Value();
      if (!gradient)
        continue;
      reached.insert(weight.getParameterAttr());
      accumulate(backward, weight, gradient);
    }
  }
  addTravelled(backward);
  for (Operation *op : llvm::reverse(forward.ops))
    if (isOpTriviallyDead(op))
      op->erase();
  for (auto parameter : getOperation().getOps<ParameterOp>())
    if (parameter.getTrainable() && !parameter.getElsewhere() &&
        !reached.contains(FlatSymbolRefAttr::get(parameter)))
      return parameter.emitError("no gradient reaches the trainable parameter "
                                 "'")
             << parameter.getSymName() << "'";
  return success();
}

void BuildTrainStepPass::buildEvaluate(OpBuilder &builder,
                                       func::FuncOp function) {
  Forward forward = cloneForward(builder, function, StepKind::Evaluate);
  OpBuilder inner = OpBuilder::atBlockEnd(&forward.step.getBody().front());
  emitResults(inner, function.getLoc(), readNames(function), forward.results,
              false);
}

void BuildTrainStepPass::buildGeneration(OpBuilder &builder,
                                         func::FuncOp function) {
  auto kind = function->getAttrOfType<StringAttr>(kStepAttr).getValue();
  Forward forward =
      cloneForward(builder, function, *symbolizeStepKind(kind));
  OpBuilder inner = OpBuilder::atBlockEnd(&forward.step.getBody().front());
  emitResults(inner, function.getLoc(), {"logits"}, forward.results, false);
}

/// Builds a parameter's initial value from copies of the weights.
static Value buildStart(OpBuilder &b, DetachedOp op) {
  IRMapping mapping;
  for (Value weight : op->getOperands())
    b.clone(*weight.getDefiningOp(), mapping);
  return b.clone(*op, mapping)->getResult(0);
}

/// Builds `initialize` for parameters whose initial value is a function of
/// other weights. A pipeline stage computes the values for its own weights; an
/// all-reduce over the stages adds the other values.
void BuildTrainStepPass::buildInitialize(OpBuilder &builder,
                                         func::FuncOp function) {
  const bool isPipeline = meshOf(getOperation()).pp > 1;
  DenseMap<Attribute, DetachedOp> starts;
  for (auto op : function.getOps<DetachedOp>())
    if (FlatSymbolRefAttr started = op.getStartedAttr())
      starts[started] = op;
  auto computed = llvm::filter_to_vector(
      getOperation().getOps<ParameterOp>(),
      [](ParameterOp op) { return op.getInit() == "computed"; });
  if (computed.empty())
    return;
  auto step = StepOp::create(builder, function.getLoc(), StepKind::Initialize,
                             0, 0, builder.getStrArrayAttr({}));
  OpBuilder inner = OpBuilder::atBlockEnd(&step.getBody().emplaceBlock());
  for (ParameterOp parameter : computed) {
    auto symbol = FlatSymbolRefAttr::get(parameter);
    Location loc = parameter.getLoc();
    auto known = starts.find(symbol);
    Value first = known == starts.end()
                      ? buildZeros(inner, loc, parameter.getTensorType())
                      : buildStart(inner, known->second);
    if (isPipeline)
      first = AllSumOp::create(inner, loc, first, Ranks::PP);
    qlora::train::InitializeOp::create(inner, loc, symbol, first);
  }
}

void BuildTrainStepPass::runOnOperation() {
  ModuleOp module = getOperation();
  trainable.clear();
  for (auto parameter : module.getOps<ParameterOp>()) {
    if (!findOptimizer(parameter.getOptimizer())) {
      parameter.emitError("no optimizer is called '")
          << parameter.getOptimizer() << "'";
      return signalPassFailure();
    }
    if (parameter.getTrainable())
      trainable[FlatSymbolRefAttr::get(parameter)] = parameter;
  }
  if (pieces > 1)
    setAxis(module, &qlora_mesh::zero1, pieces);
  if (runRanks > 0)
    module->setAttr(kRunRanksAttr,
                    Builder(&getContext()).getI64IntegerAttr(runRanks));
  if (failed(qlora::checkDivision(module)))
    return signalPassFailure();
  OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
  SmallVector<func::FuncOp> functions(module.getOps<func::FuncOp>());
  const bool trains =
      functions.empty() || !llvm::all_of(functions, isOfGeneration);
  if (trains && trainable.empty()) {
    module.emitError("nothing to train: no parameter is trainable; attach "
                     "adapters or name modules to save");
    return signalPassFailure();
  }
  // The functions differ in sequence length and share their weights.
  if (!functions.empty())
    buildInitialize(builder, functions.front());
  for (func::FuncOp function : functions) {
    if (failed(checkInputs(function)))
      return signalPassFailure();
    if (isOfGeneration(function)) {
      buildGeneration(builder, function);
    } else {
      if (failed(checkForward(function)) ||
          failed(buildAccumulate(builder, function)))
        return signalPassFailure();
      buildEvaluate(builder, function);
    }
    function.erase();
  }
  if (trains)
    qlora::buildUpdateSteps(builder, module);
}
