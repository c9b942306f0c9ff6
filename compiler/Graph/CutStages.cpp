// SPDX-License-Identifier: MIT

// cut-stages: the forward functions become those of one stage of a pipeline.
//
//   func.func @forward(%ids, %targets, ...)
//     %x0 = model.embedding %ids, %table
//     %x1 = ... {layer = 0}
//     %x2 = ... %x1 {layer = 1}
//     %loss, %count, %correct = model.head_loss %x2, %head, %targets
//     return %loss, %count, %correct
//
// becomes, as the first of two stages,
//
//     %x0 = model.embedding %ids, %table
//     %x1 = ... {layer = 0}
//     %zeros:3 = model.send %x1 to 1 {names = ["loss_sum", ...]}
//     return %zeros#0, %zeros#1, %zeros#2
//
// and as the second
//
//     %x1 = model.receive from -1
//     %x2 = ... %x1 {layer = 1}
//     ...
//
// What goes from one stage to the next is found by who uses it, and goes on
// from stage to stage as far as it is used; what is made of inputs alone
// (masks, tables of rotations) or of weights alone each stage makes for itself.
// Layers are dealt by LayerDeal.h. Gradients follow by the rules of the two ops: that of a send is a receive. Weights that
// a stage does not use are not there; what is trained is, so that all stages
// have one layout of it.

#include "compiler/Decisions.h"
#include "compiler/Graph/LayerDeal.h"
#include "compiler/Passes.h"
#include "dialects/Program/Program.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_CUTSTAGES
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class CutStagesPass : public qlora::impl::CutStagesBase<CutStagesPass> {
public:
  using CutStagesBase::CutStagesBase;

private:
  void runOnOperation() override;
  FailureOr<SmallVector<int64_t>> deal();
  LogicalResult cut(func::FuncOp function, ArrayRef<int64_t> stageOfLayer);
  void dropWeights();

  int64_t sentBytes = 0;
  /// By parameter, before anything is cut.
  llvm::StringMap<SmallVector<int64_t>> stagesOfUsers;
};

/// The ops of a forward function by stages.
class StagesOfOps {
public:
  StagesOfOps(func::FuncOp function, ArrayRef<int64_t> stageOfLayer);

  /// Nothing for what each stage makes for itself.
  std::optional<int64_t> stageOf(Operation *op) const {
    auto known = stages.find(op);
    return known == stages.end() ? std::nullopt : std::optional(known->second);
  }
  /// What stage `from` sends to the next one, in the order in which it is made.
  SmallVector<Value> sentBy(int64_t from);
  /// Something that is trained flows into the value, which has a gradient.
  bool isWanted(Value value) const { return wanted.contains(value); }

private:
  void findStage(Operation *op, ArrayRef<int64_t> stageOfLayer);
  bool trains(Operation *op) const;

  /// What a value is made of.
  struct Source {
    bool inputs = false, weights = false;
  };
  func::FuncOp function;
  const SymbolTable symbols;
  int64_t last;
  DenseMap<Operation *, int64_t> stages;
  DenseMap<Value, Source> sources;
  DenseSet<Value> wanted;
};
} // namespace

//===----------------------------------------------------------------------===//
// Which stage has which ops
//===----------------------------------------------------------------------===//

StagesOfOps::StagesOfOps(func::FuncOp function, ArrayRef<int64_t> stageOfLayer)
    : function(function), symbols(function->getParentOfType<ModuleOp>()),
      last(stageOfLayer.back()) {
  for (BlockArgument argument : function.getArguments())
    sources[argument].inputs = true;
  for (Operation &op : function.front().without_terminator())
    findStage(&op, stageOfLayer);
}

bool StagesOfOps::trains(Operation *op) const {
  auto weight = dyn_cast<WeightOp>(op);
  return weight &&
         symbols.lookup<ParameterOp>(weight.getParameter()).getTrainable();
}

void StagesOfOps::findStage(Operation *op, ArrayRef<int64_t> stageOfLayer) {
  Source source;
  source.weights = isa<WeightOp>(op);
  int64_t stage = layerOf(op) < 0 ? 0 : stageOfLayer[layerOf(op)];
  bool isTrained = trains(op);
  for (Value operand : op->getOperands()) {
    source.inputs |= sources[operand].inputs;
    source.weights |= sources[operand].weights;
    isTrained |= isWanted(operand);
    if (Operation *def = operand.getDefiningOp())
      stage = std::max(stage, stageOf(def).value_or(0));
  }
  // Results are those of the last stage, whatever they are of.
  if (isa<LossOp>(op))
    stage = last;
  if (source.inputs && source.weights)
    stages[op] = stage;
  for (Value result : op->getResults()) {
    sources[result] = source;
    if (isTrained && !isa<DetachedOp>(op) &&
        isa<FloatType>(tensorOf(result).getElementType()))
      wanted.insert(result);
  }
}

SmallVector<Value> StagesOfOps::sentBy(int64_t from) {
  SmallVector<Value> sent;
  for (Operation &op : function.front().without_terminator())
    if (std::optional<int64_t> stage = stageOf(&op); stage && *stage <= from)
      for (Value result : op.getResults())
        if (llvm::any_of(result.getUsers(), [&](Operation *user) {
              // What is returned, the last stage does.
              return user->hasTrait<OpTrait::IsTerminator>()
                         ? from < last
                         : stageOf(user).value_or(0) > from;
            }))
          sent.push_back(result);
  return sent;
}

//===----------------------------------------------------------------------===//
// One stage
//===----------------------------------------------------------------------===//

static SmallVector<bool> flagsOf(const StagesOfOps &stages,
                                 ArrayRef<Value> values) {
  return llvm::map_to_vector(
      values, [&](Value value) { return stages.isWanted(value); });
}

/// What the stage before sends, in the place of what made it.
static void receive(func::FuncOp function, ArrayRef<Value> values,
                    ArrayRef<bool> wanted) {
  OpBuilder b = OpBuilder::atBlockBegin(&function.front());
  auto received = ReceiveOp::create(b, function.getLoc(),
                                    ValueRange(values).getTypes(), -1, wanted);
  for (auto [i, arrived] : llvm::enumerate(received.getValues()))
    Value(values[i]).replaceAllUsesWith(arrived);
}

/// The next stage goes on, and has the results.
static void send(func::FuncOp function, ArrayRef<Value> values,
                 ArrayRef<bool> wanted) {
  Operation *end = function.front().getTerminator();
  SmallVector<Attribute> names;
  OpBuilder b(end);
  for (Value result : end->getOperands())
    names.push_back(b.getStringAttr(
        cast<LossOp>(result.getDefiningOp())
            .getReadName(cast<OpResult>(result).getResultNumber())));
  auto sent = SendOp::create(b, function.getLoc(), end->getOperandTypes(),
                             values, 1, b.getArrayAttr(names), wanted);
  end->setOperands(sent.getZeros());
}

LogicalResult CutStagesPass::cut(func::FuncOp function,
                                 ArrayRef<int64_t> stageOfLayer) {
  for (Value result : function.front().getTerminator()->getOperands())
    if (!result.getDefiningOp<LossOp>())
      return function.emitError("cannot be cut into stages: it returns what is "
                                "no result of a loss");
  StagesOfOps all(function, stageOfLayer);
  for (auto weight : function.getOps<WeightOp>())
    for (Operation *user : weight->getUsers())
      if (std::optional<int64_t> of = all.stageOf(user))
        stagesOfUsers[weight.getParameter()].push_back(*of);
  SmallVector<Value> arriving, leaving;
  if (stage > 0)
    arriving = all.sentBy(stage - 1);
  if (stage + 1 < stages)
    leaving = all.sentBy(stage);
  const SmallVector<bool> wantedHere = flagsOf(all, arriving),
                          wantedThere = flagsOf(all, leaving);
  // Both before anything is replaced, which goes on from stage to stage.
  if (stage + 1 < stages)
    send(function, leaving, wantedThere);
  if (stage > 0)
    receive(function, arriving, wantedHere);
  for (Value value : leaving)
    sentBytes += tensorBytes(tensorOf(value));
  SmallVector<Operation *> ops;
  for (Operation &op : function.front().without_terminator())
    ops.push_back(&op);
  for (Operation *op : llvm::reverse(ops))
    if (std::optional<int64_t> of = all.stageOf(op);
        (of && *of != stage) || isOpTriviallyDead(op))
      op->erase();
  return success();
}

/// Of what is not used here, only what is trained is there.
void CutStagesPass::dropWeights() {
  DenseSet<StringRef> used;
  getOperation().walk(
      [&](WeightOp weight) { used.insert(weight.getParameter()); });
  for (auto parameter :
       llvm::make_early_inc_range(getOperation().getOps<ParameterOp>())) {
    if (used.contains(parameter.getSymName()))
      continue;
    if (parameter.getTrainable())
      parameter.setElsewhere(true);
    else
      parameter.erase();
  }
}

FailureOr<SmallVector<int64_t>> CutStagesPass::deal() {
  StatusOr<DeviceProfile> device = deviceProfileOrDefault(profile, target);
  if (!device.isOk())
    return getOperation().emitError(device.status().message());
  LayerDealOptions options;
  options.stages = stages;
  options.speeds = speeds;
  options.map = deviceMap;
  options.memoryLimit = memoryLimit;
  return dealLayers(getOperation(), options, *device);
}

void CutStagesPass::runOnOperation() {
  sentBytes = 0;
  stagesOfUsers.clear();
  if (stages < 1 || stage < 0 || stage >= stages) {
    getOperation().emitError("expects one of the stages of a pipeline, but got "
                             "stage ")
        << int64_t(stage) << " of " << int64_t(stages);
    return signalPassFailure();
  }
  if (stages == 1)
    return;
  const FailureOr<SmallVector<int64_t>> stageOfLayer = deal();
  if (failed(stageOfLayer))
    return signalPassFailure();
  for (auto function : getOperation().getOps<func::FuncOp>())
    if (failed(cut(function, *stageOfLayer)))
      return signalPassFailure();
  if (failed(checkMapped(getOperation(), deviceMap, stagesOfUsers)))
    return signalPassFailure();
  dropWeights();
  Builder b(&getContext());
  getOperation()->setAttr(program::kStagesAttr, b.getI64IntegerAttr(stages));
  getOperation()->setAttr(program::kStageAttr, b.getI64IntegerAttr(stage));
  recordDecision(getOperation(), getArgument(),
                 Facts(&getContext())
                     .add("stages", int64_t(stages))
                     .add("stage", int64_t(stage))
                     .add("sent_bytes", sentBytes)
                     .get());
}
