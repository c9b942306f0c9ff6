// SPDX-License-Identifier: MIT

// build-train-step: forward functions become train.steps, by reverse mode.
//
//   func.func @forward_2x32(%ids, ...) { ... return %loss, %count, %correct }
//
// becomes
//
//   train.step accumulate batch 2 length 32 { forward; backward;
//     train.accumulate @p, %dp ... }
//   train.step evaluate batch 2 length 32 { forward }
//   train.step update { clip_norm, an update of each piece, clear }
//
// and, where trained parameters start at a function of other weights,
//
//   train.step initialize { train.initialize @p, %first }
//
// and, where an optimizer trains at other weights than are used, `average` and
// `continue`, which turn the ones into the others.

#include "compiler/Passes.h"
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

/// Puts ops into the backward, and into the layer of the forward op that they
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

/// The forward part of a step, cloned from its function.
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
  void buildInitialize(OpBuilder &builder, func::FuncOp function);
  void buildUpdate(OpBuilder &builder);
  void buildSwitch(OpBuilder &builder, const UpdatePlan &plan, StepKind kind);
  bool isTrainable(Operation *op) const;
  LogicalResult findWanted(ArrayRef<Operation *> ops, Tape &tape) const;

  DenseSet<Attribute> trainable; ///< parameters, as weights name them
};

} // namespace

/// What the runtime reads of the function.
static SmallVector<StringRef> readNames(func::FuncOp function) {
  return llvm::map_to_vector(
      function.front().getTerminator()->getOperands(), [](Value value) {
        auto loss = value.getDefiningOp<LossOp>();
        return loss ? loss.getReadName(
                          cast<OpResult>(value).getResultNumber())
                    : StringRef();
      });
}

/// The function is one that the runtime can feed: each argument is a known
/// input, and the results are what it reads, a loss first and how much that is
/// of.
static LogicalResult checkForward(func::FuncOp function) {
  if (!function->hasAttr("model.batch") || !function->hasAttr("model.length"))
    return function.emitOpError("has no model.batch and model.length, which "
                                "specialize-shapes writes");
  StringSet<> seen;
  for (unsigned i = 0; i < function.getNumArguments(); ++i) {
    auto input = function.getArgAttrOfType<StringAttr>(i, "model.input");
    if (!input || !llvm::is_contained(kStepInputs, input.getValue()))
      return function.emitOpError("argument ")
             << i << " expects one of " << llvm::join(ArrayRef(kStepInputs), ", ")
             << " as model.input";
    if (!seen.insert(input.getValue()).second)
      return function.emitOpError("has two arguments for the input '")
             << input.getValue() << "'";
    const bool isOfLines = input.getValue() == kLineInput;
    auto type = dyn_cast<RankedTensorType>(function.getArgument(i).getType());
    if (!type || type.getRank() != (isOfLines ? 1 : 2) ||
        !(isOfLines ? type.getElementType().isF32()
                    : type.getElementType().isInteger(32)))
      return function.emitOpError("argument ")
             << i << " expects a type of "
             << (isOfLines ? "[B] f32" : "[B, T] i32") << ", but got "
             << function.getArgument(i).getType();
  }
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
                                         func::FuncOp function,
                                         StepKind kind) {
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

/// Marks every value that a trainable parameter flows into.
LogicalResult BuildTrainStepPass::findWanted(ArrayRef<Operation *> ops,
                                             Tape &tape) const {
  for (Operation *op : ops) {
    if (isa<DetachedOp>(op))
      continue;
    bool reads = llvm::any_of(op->getOperands(),
                              [&](Value v) { return tape.needs(v); });
    if (reads && !isa<Differentiable>(op))
      return op->emitOpError("has no derivative, but a trainable parameter "
                             "flows into it");
    if (reads || isTrainable(op))
      for (Value result : op->getResults())
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

LogicalResult BuildTrainStepPass::buildAccumulate(OpBuilder &builder,
                                                  func::FuncOp function) {
  Forward forward = cloneForward(builder, function, StepKind::Accumulate);
  BackwardMarker marker;
  OpBuilder backward = OpBuilder::atBlockEnd(&forward.step.getBody().front());
  backward.setListener(&marker);
  Tape tape(backward);
  if (failed(findWanted(forward.ops, tape)))
    return failure();
  SmallVector<Operation *> results =
      emitResults(backward, function.getLoc(), readNames(function),
                  forward.results, true);
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
        rule && (flows || losses.contains(op)))
      if (failed(rule.buildGradient(tape)))
        return failure();
    // The loss may come from its gradient op from now on.
    if (op == lossOp)
      for (Operation *result : results)
        result->moveBefore(result->getBlock(), result->getBlock()->end());
    // At once, also where another op reads the weight too (tied weights):
    // nothing of a weight's size waits.
    for (Value operand : op->getOperands()) {
      auto weight = operand.getDefiningOp<WeightOp>();
      Value gradient = weight && isTrainable(weight) ? tape.take(operand)
                                                     : Value();
      if (!gradient)
        continue;
      reached.insert(weight.getParameterAttr());
      qlora::train::AccumulateOp::create(backward, weight.getLoc(),
                                         weight.getParameterAttr(), gradient,
                                         weight.getPartAttr());
    }
  }
  for (Operation *op : llvm::reverse(forward.ops))
    if (isOpTriviallyDead(op))
      op->erase();
  for (auto parameter : getOperation().getOps<ParameterOp>())
    if (parameter.getTrainable() &&
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

/// Of the ops that say where a parameter starts, copies over the weights then.
void BuildTrainStepPass::buildInitialize(OpBuilder &builder,
                                         func::FuncOp function) {
  auto starts = llvm::filter_to_vector(
      function.getOps<DetachedOp>(),
      [](DetachedOp op) { return op.getStartedAttr() != nullptr; });
  if (starts.empty())
    return;
  auto step = StepOp::create(builder, function.getLoc(), StepKind::Initialize,
                             0, 0, builder.getStrArrayAttr({}));
  OpBuilder inner =
      OpBuilder::atBlockEnd(&step.getBody().emplaceBlock());
  for (DetachedOp op : starts) {
    IRMapping mapping;
    for (Value weight : op->getOperands())
      inner.clone(*weight.getDefiningOp(), mapping);
    Operation *first = inner.clone(*op, mapping);
    qlora::train::InitializeOp::create(inner, op.getLoc(), op.getStartedAttr(),
                                       first->getResult(0));
  }
}

/// The new p and states: a row op, or one that calls a kernel, which have the
/// same operands, or what the optimizer makes of several.
static SmallVector<Value> updateOf(OpBuilder &b, const UpdatePiece &piece,
                                   ArrayRef<Value> operands) {
  const Optimizer &optimizer = *piece.kind.optimizer;
  if (optimizer.build)
    return optimizer.build(b, piece, operands);
  OperationState op(b.getUnknownLoc(), optimizer.isByTensor
                                           ? UpdateOp::getOperationName()
                                           : StringRef(optimizer.op));
  op.addOperands(operands);
  for (Value updated : operands.drop_back(2))
    op.addTypes(updated.getType());
  op.addAttribute("rate_scale", b.getF64FloatAttr(piece.kind.rateScale));
  if (piece.kind.isUndecayed)
    op.addAttribute("undecayed", b.getUnitAttr());
  if (optimizer.isByTensor)
    op.addAttribute("kernel", b.getStringAttr(optimizer.op));
  return SmallVector<Value>(b.create(op)->getResults());
}

static void updatePiece(OpBuilder &b, const UpdatePiece &piece, Value scale) {
  Location loc = b.getUnknownLoc();
  auto read = [&](FlatKind kind, RankedTensorType type,
                  FlatSymbolRefAttr parameter, int64_t row,
                  int64_t pieces) -> Value {
    return FlatOp::create(b, loc, type, kind, parameter, false, row, pieces);
  };
  SmallVector<Value> operands = {
      read(FlatKind::Trainable, piece.type, piece.parameter, piece.row,
           piece.pieces)};
  for (const UpdatePiece::State &state : piece.states)
    operands.push_back(read(FlatKind::State, state.type, {}, state.offset, 1));
  operands.push_back(
      read(FlatKind::Gradient, piece.type, piece.parameter, piece.row,
           piece.pieces));
  operands.push_back(scale);
  SmallVector<Value> updated = updateOf(b, piece, operands);
  StoreFlatOp::create(b, loc, FlatKind::Trainable, piece.parameter, updated[0],
                      piece.row, piece.pieces);
  for (auto [state, value] :
       llvm::zip_equal(piece.states, ArrayRef(updated).drop_front()))
    StoreFlatOp::create(b, loc, FlatKind::State, FlatSymbolRefAttr(), value,
                        state.offset);
}

/// What is trained becomes what is used, or the other way round.
void BuildTrainStepPass::buildSwitch(OpBuilder &builder,
                                     const UpdatePlan &plan, StepKind kind) {
  Location loc = builder.getUnknownLoc();
  auto step =
      StepOp::create(builder, loc, kind, 0, 0, builder.getStrArrayAttr({}));
  OpBuilder b = OpBuilder::atBlockEnd(&step.getBody().emplaceBlock());
  for (const UpdatePiece &piece : plan.pieces) {
    StringRef average = piece.kind.optimizer->average;
    if (average.empty())
      continue;
    auto read = [&](FlatKind flat, int64_t row) -> Value {
      return FlatOp::create(b, loc, piece.type, flat, FlatSymbolRefAttr(),
                            false, row);
    };
    OperationState op(loc, average);
    op.addOperands({read(FlatKind::Trainable, piece.row),
                    read(FlatKind::State, piece.states.front().offset)});
    op.addTypes(piece.type);
    if (kind == StepKind::Continue)
      op.addAttribute("back", b.getUnitAttr());
    StoreFlatOp::create(b, loc, FlatKind::Trainable, FlatSymbolRefAttr(),
                        b.create(op)->getResult(0), piece.row);
  }
}

void BuildTrainStepPass::buildUpdate(OpBuilder &builder) {
  Location loc = builder.getUnknownLoc();
  const int64_t rows = flatElements(getOperation()) / kFlatColumns;
  Type f32 = builder.getF32Type();
  auto whole = RankedTensorType::get({rows, kFlatColumns}, f32);
  auto one = RankedTensorType::get({1}, f32);
  auto step = StepOp::create(builder, loc, StepKind::Update, 0, 0,
                             builder.getStrArrayAttr({}));
  Block &block = step.getBody().emplaceBlock();
  OpBuilder b = OpBuilder::atBlockEnd(&block);
  Value all = FlatOp::create(b, loc, whole, FlatKind::Gradient,
                             FlatSymbolRefAttr(), true);
  auto clip = ClipNormOp::create(b, loc, one, one, all);
  ResultOp::create(b, loc, "grad_norm", clip.getNorm(), false);
  const UpdatePlan plan = planUpdate(getOperation());
  for (const UpdatePiece &piece : plan.pieces)
    updatePiece(b, piece, clip.getScale());
  for (const UpdatePiece &piece : plan.pieces)
    if (piece.pieces > 1)
      GatherFlatOp::create(
          b, loc,
          piece.type.clone({matrixRows(piece.type) * piece.pieces,
                            kFlatColumns}),
          FlatKind::Trainable, piece.row, piece.pieces);
  ClearOp::create(b, loc, FlatKind::Gradient);
  if (llvm::any_of(plan.pieces, [](const UpdatePiece &piece) {
        return !piece.kind.optimizer->average.empty();
      }))
    for (StepKind kind : {StepKind::Average, StepKind::Continue})
      buildSwitch(builder, plan, kind);
}

/// Of an optimizer that has to see a tensor whole, or all of what is kept, there
/// are no pieces.
static LogicalResult checkDivision(ModuleOp module) {
  if (updatePiecesOf(module) == 1)
    return success();
  for (auto parameter : module.getOps<ParameterOp>()) {
    const Optimizer *optimizer = findOptimizer(parameter.getOptimizer());
    if (parameter.getTrainable() &&
        (optimizer->isByTensor || !optimizer->average.empty()))
      return module.emitError("updates of '")
             << optimizer->name << "' cannot be divided among ranks; train with "
             << "--optim adamw_torch or lion, or without zero1";
  }
  return success();
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
      trainable.insert(FlatSymbolRefAttr::get(parameter));
  }
  if (pieces > 1)
    module->setAttr(kUpdatePiecesAttr,
                    Builder(&getContext()).getI64IntegerAttr(pieces));
  if (failed(checkDivision(module)))
    return signalPassFailure();
  if (trainable.empty()) {
    module.emitError("nothing to train: no parameter is trainable; attach "
                     "adapters or name modules to save");
    return signalPassFailure();
  }
  OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
  SmallVector<func::FuncOp> functions(module.getOps<func::FuncOp>());
  if (!functions.empty()) // of which all lengths have the same weights
    buildInitialize(builder, functions.front());
  for (func::FuncOp function : functions) {
    if (failed(checkForward(function)) ||
        failed(buildAccumulate(builder, function)))
      return signalPassFailure();
    buildEvaluate(builder, function);
    function.erase();
  }
  buildUpdate(builder);
}
