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
// Layers are dealt so that the slowest stage is as fast as can be. Gradients
// follow by the rules of the two ops: that of a send is a receive. Weights that
// a stage does not use are not there; what is trained is, so that all stages
// have one layout of it.

#include "compiler/Decisions.h"
#include "compiler/Graph/OpCost.h"
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
  LogicalResult cut(func::FuncOp function, ArrayRef<int64_t> stageOfLayer);
  void dropWeights();

  int64_t sentBytes = 0;
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
// Which stage has which layers
//===----------------------------------------------------------------------===//

/// Seconds of each layer; what comes before them and after them is the first
/// one's and the last one's.
static SmallVector<double> secondsOfLayers(func::FuncOp function,
                                           const DeviceProfile &device) {
  SmallVector<double> seconds;
  double waiting = 0;
  for (Operation &op : function.front().without_terminator()) {
    const int64_t layer = layerOf(&op);
    if (layer >= int64_t(seconds.size()))
      seconds.resize(layer + 1);
    (layer < 0 ? waiting : seconds[layer]) += secondsOf(&op, device);
    if (layer >= 0)
      seconds[layer] += std::exchange(waiting, 0);
  }
  if (!seconds.empty())
    seconds.back() += waiting;
  return seconds;
}

/// Runs of layers, one for each stage and none empty, of which the slowest is
/// as fast as can be; of equals the one whose first runs are longest.
static SmallVector<int64_t> dealLayers(ArrayRef<double> seconds,
                                       int64_t stages) {
  const int64_t layers = seconds.size();
  // slowest[s][l]: of layers from l on in s stages; ends[s][l]: of the first.
  std::vector<std::vector<double>> slowest(
      stages + 1, std::vector<double>(layers + 1, HUGE_VAL));
  std::vector<std::vector<int64_t>> ends(
      stages + 1, std::vector<int64_t>(layers + 1, layers));
  slowest[0][layers] = 0;
  for (int64_t s = 1; s <= stages; ++s)
    for (int64_t first = 0; first < layers; ++first) {
      double own = 0;
      for (int64_t end = first + 1; end <= layers; ++end) {
        own += seconds[end - 1];
        const double all = std::max(own, slowest[s - 1][end]);
        if (all <= slowest[s][first] && all < HUGE_VAL) {
          slowest[s][first] = all;
          ends[s][first] = end;
        }
      }
    }
  SmallVector<int64_t> stageOfLayer(layers);
  for (int64_t stage = 0, first = 0; stage < stages; ++stage) {
    const int64_t end = ends[stages - stage][first];
    std::fill(stageOfLayer.begin() + first, stageOfLayer.begin() + end, stage);
    first = end;
  }
  return stageOfLayer;
}

/// For all lengths alike, which have the same weights: by the longest.
static FailureOr<SmallVector<int64_t>>
dealOnce(ModuleOp module, int64_t stages, const DeviceProfile &device) {
  const auto lengthOf = [](func::FuncOp function) {
    return function->getAttrOfType<IntegerAttr>("model.length").getInt();
  };
  func::FuncOp longest;
  for (auto function : module.getOps<func::FuncOp>())
    if (!longest || lengthOf(function) > lengthOf(longest))
      longest = function;
  if (!longest)
    return SmallVector<int64_t>();
  const SmallVector<double> seconds = secondsOfLayers(longest, device);
  if (int64_t(seconds.size()) < stages)
    return longest.emitError("a pipeline of ")
           << stages << " stages needs as many layers, but the model has "
           << seconds.size() << "; give a smaller pp to --parallel";
  return dealLayers(seconds, stages);
}

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

void CutStagesPass::runOnOperation() {
  sentBytes = 0;
  if (stages < 1 || stage < 0 || stage >= stages) {
    getOperation().emitError("expects one of the stages of a pipeline, but got "
                             "stage ")
        << int64_t(stage) << " of " << int64_t(stages);
    return signalPassFailure();
  }
  if (stages == 1)
    return;
  StatusOr<DeviceProfile> device = deviceProfileOrDefault(profile, target);
  if (!device.isOk()) {
    getOperation().emitError(device.status().message());
    return signalPassFailure();
  }
  const FailureOr<SmallVector<int64_t>> stageOfLayer =
      dealOnce(getOperation(), stages, *device);
  if (failed(stageOfLayer))
    return signalPassFailure();
  for (auto function : getOperation().getOps<func::FuncOp>())
    if (failed(cut(function, *stageOfLayer)))
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
