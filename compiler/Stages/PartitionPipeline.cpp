// SPDX-License-Identifier: MIT

// partition-pipeline: reduces the forward functions to one pipeline stage.
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
// With `parts` = V, the layers are divided into S V virtual stages of adjacent
// layers. Stage s of S has the virtual stages s, s + S, and so on. The last
// stage sends to the first one again.
//
// Values that cross stages are found by their readers, and are passed on from
// stage to stage up to the last reader. Values computed only from inputs
// (masks, rotation tables) or only from weights are recomputed on each stage.
// StagePartition.h assigns the layers. Gradients follow from the rules of the
// two ops: the gradient of a send is a receive. A stage drops unused weights,
// except trainable ones, so that all stages share one layout.

#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"
#include "compiler/Stages/StagePartition.h"
#include "dialects/Program/Program.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_PARTITIONPIPELINE
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class PartitionPipelinePass
    : public qlora::impl::PartitionPipelineBase<PartitionPipelinePass> {
public:
  using PartitionPipelineBase::PartitionPipelineBase;

private:
  void runOnOperation() override;
  FailureOr<SmallVector<int64_t>> deal();
  LogicalResult cut(func::FuncOp function, ArrayRef<int64_t> partOfLayer);
  void dropWeights();

  int64_t sentBytes = 0;
  /// Stages that use each parameter. Found before dropping other stages' ops.
  llvm::StringMap<SmallVector<int64_t>> stagesOfUsers;
};

/// Assigns the ops of a forward function to virtual stages.
class PartsOfOps {
public:
  PartsOfOps(func::FuncOp function, ArrayRef<int64_t> partOfLayer);

  /// Returns an op's virtual stage; nullopt if each stage computes the op
  /// itself.
  std::optional<int64_t> partOf(Operation *op) const {
    auto known = parts.find(op);
    return known == parts.end() ? std::nullopt : std::optional(known->second);
  }
  /// Returns the values that virtual stage `from` sends to the next virtual
  /// stage, in program order.
  SmallVector<Value> sentBy(int64_t from) const;
  /// Returns whether the value has a gradient.
  bool isWanted(Value value) const { return wanted.contains(value); }
  int64_t lastPart() const { return last; }

private:
  void findPart(Operation *op, ArrayRef<int64_t> partOfLayer);
  bool trains(Operation *op) const;

  /// Kinds of values that a value depends on.
  struct Source {
    bool inputs = false, weights = false;
  };
  Block &block; ///< of the function
  const SymbolTable symbols;
  int64_t last;
  DenseMap<Operation *, int64_t> parts;
  DenseMap<Value, Source> sources;
  DenseSet<Value> wanted;
};

/// Reduces a function to the ops of one stage.
class StageCut {
public:
  StageCut(func::FuncOp function, const PartsOfOps &all)
      : block(function.front()), all(all), loc(function.getLoc()) {}
  /// Builds the stage from its virtual stages, in order.
  void run(ArrayRef<int64_t> parts);
  int64_t bytesSent() const { return sentBytes; }

private:
  void addOps(int64_t part);
  void addPart(int64_t part);
  void send(int64_t part);

  Block &block;
  const PartsOfOps &all;
  const Location loc;
  SmallVector<Operation *> ops; ///< of the whole function
  OpBuilder b{loc.getContext()};
  IRMapping shared; ///< values that each stage computes itself
  IRMapping values; ///< values of the current virtual stage
  int64_t sentBytes = 0;
};
} // namespace

//===----------------------------------------------------------------------===//
// Assignment of ops
//===----------------------------------------------------------------------===//

PartsOfOps::PartsOfOps(func::FuncOp function, ArrayRef<int64_t> partOfLayer)
    : block(function.front()), symbols(function->getParentOfType<ModuleOp>()),
      last(partOfLayer.back()) {
  for (BlockArgument argument : function.getArguments())
    sources[argument].inputs = true;
  for (Operation &op : function.front().without_terminator())
    findPart(&op, partOfLayer);
}

bool PartsOfOps::trains(Operation *op) const {
  auto weight = dyn_cast<WeightOp>(op);
  return weight &&
         symbols.lookup<ParameterOp>(weight.getParameter()).getTrainable();
}

void PartsOfOps::findPart(Operation *op, ArrayRef<int64_t> partOfLayer) {
  Source source;
  source.weights = isa<WeightOp>(op);
  int64_t part = layerOf(op) < 0 ? 0 : partOfLayer[layerOf(op)];
  bool isTrained = trains(op);
  for (Value operand : op->getOperands()) {
    source.inputs |= sources[operand].inputs;
    source.weights |= sources[operand].weights;
    isTrained |= isWanted(operand);
    if (Operation *def = operand.getDefiningOp())
      part = std::max(part, partOf(def).value_or(0));
  }
  // Losses belong to the last virtual stage.
  if (isa<LossOp>(op))
    part = last;
  if (source.inputs && source.weights)
    parts[op] = part;
  for (Value result : op->getResults()) {
    sources[result] = source;
    if (isTrained && !isa<DetachedOp>(op) &&
        isa<FloatType>(tensorOf(result).getElementType()))
      wanted.insert(result);
  }
}

SmallVector<Value> PartsOfOps::sentBy(int64_t from) const {
  SmallVector<Value> sent;
  for (Operation &op : block.without_terminator())
    if (std::optional<int64_t> part = partOf(&op); part && *part <= from)
      for (Value result : op.getResults())
        if (llvm::any_of(result.getUsers(), [&](Operation *user) {
              // The last virtual stage returns the results.
              return user->hasTrait<OpTrait::IsTerminator>()
                         ? from < last
                         : partOf(user).value_or(0) > from;
            }))
          sent.push_back(result);
  return sent;
}

//===----------------------------------------------------------------------===//
// One stage
//===----------------------------------------------------------------------===//

static SmallVector<bool> flagsOf(const PartsOfOps &parts,
                                 ArrayRef<Value> values) {
  return llvm::map_to_vector(
      values, [&](Value value) { return parts.isWanted(value); });
}

/// Clones the ops of a virtual stage. Ops that each stage computes itself are
/// cloned before the next op of the virtual stage.
void StageCut::addOps(int64_t part) {
  const auto isOfPart = [&](Operation *op) { return all.partOf(op) == part; };
  const auto end = std::find_if(ops.rbegin(), ops.rend(), isOfPart).base();
  for (Operation *op : llvm::make_range(ops.begin(), end)) {
    if (isOfPart(op)) {
      b.clone(*op, values);
      continue;
    }
    if (all.partOf(op) || shared.contains(op->getResult(0)))
      continue;
    Operation *own = b.clone(*op, values);
    shared.map(op->getResults(), own->getResults());
  }
}

/// Sends values to the next virtual stage. Zeros replace the function's
/// results, which the last stage computes.
void StageCut::send(int64_t part) {
  const SmallVector<Value> leaving = all.sentBy(part);
  SmallVector<Value> sent;
  for (Value value : leaving) {
    sent.push_back(values.lookup(value));
    sentBytes += tensorBytes(tensorOf(value));
  }
  Operation *end = block.getTerminator();
  SmallVector<Attribute> names;
  for (Value result : end->getOperands())
    names.push_back(b.getStringAttr(
        cast<LossOp>(result.getDefiningOp())
            .getReadName(cast<OpResult>(result).getResultNumber())));
  auto op = SendOp::create(b, loc, end->getOperandTypes(), sent, 1,
                           b.getArrayAttr(names), flagsOf(all, leaving));
  for (auto [result, zero] : llvm::zip_equal(end->getOperands(), op.getZeros()))
    values.map(result, zero);
}

/// Adds a virtual stage: receives its inputs, computes, sends its results.
void StageCut::addPart(int64_t part) {
  values = shared;
  if (part > 0) {
    const SmallVector<Value> arriving = all.sentBy(part - 1);
    auto received = ReceiveOp::create(b, loc, ValueRange(arriving).getTypes(),
                                      -1, flagsOf(all, arriving));
    values.map(arriving, received.getValues());
  }
  addOps(part);
  if (part < all.lastPart())
    send(part);
}

void StageCut::run(ArrayRef<int64_t> parts) {
  for (Operation &op : block.without_terminator())
    ops.push_back(&op);
  Operation *end = block.getTerminator();
  b.setInsertionPoint(end);
  for (int64_t part : parts)
    addPart(part);
  for (OpOperand &result : end->getOpOperands())
    result.set(values.lookup(result.get()));
  for (Operation *op : llvm::reverse(ops))
    op->erase();
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block)))
    if (isOpTriviallyDead(&op))
      op.erase();
}

LogicalResult PartitionPipelinePass::cut(func::FuncOp function,
                                         ArrayRef<int64_t> partOfLayer) {
  for (Value result : function.front().getTerminator()->getOperands())
    if (!result.getDefiningOp<LossOp>())
      return function.emitError("cannot be partitioned into stages: it "
                                "returns a value that is not from a loss");
  PartsOfOps all(function, partOfLayer);
  for (auto weight : function.getOps<WeightOp>())
    for (Operation *user : weight->getUsers())
      if (std::optional<int64_t> of = all.partOf(user))
        stagesOfUsers[weight.getParameter()].push_back(*of % stages);
  SmallVector<int64_t> own;
  for (int64_t part = stage; part < stages * parts; part += stages)
    own.push_back(part);
  StageCut cut(function, all);
  cut.run(own);
  sentBytes += cut.bytesSent();
  return success();
}

/// Erases unused frozen parameters.
void PartitionPipelinePass::dropWeights() {
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

FailureOr<SmallVector<int64_t>> PartitionPipelinePass::deal() {
  StatusOr<DeviceProfile> device = deviceProfileOrDefault(profile, target);
  if (!device.isOk())
    return getOperation().emitError(device.status().message());
  StagePartitionOptions options;
  options.stages = stages * parts;
  const SmallVector<int64_t> ofStages(speeds.begin(), speeds.end());
  SmallVector<int64_t> ofParts;
  for (int64_t part = 0; part < parts; ++part)
    ofParts.append(ofStages);
  options.speeds = ofParts;
  options.map = deviceMap;
  options.memoryLimit = memoryLimit;
  return partitionLayers(getOperation(), options, *device);
}

void PartitionPipelinePass::runOnOperation() {
  sentBytes = 0;
  stagesOfUsers.clear();
  if (stages < 1 || stage < 0 || stage >= stages || parts < 1) {
    getOperation().emitError("expects a stage index below the number of "
                             "stages, and at least one virtual stage, but got "
                             "stage ")
        << int64_t(stage) << " of " << int64_t(stages) << " with "
        << int64_t(parts) << " virtual stages each";
    return signalPassFailure();
  }
  if (stages == 1)
    return;
  const FailureOr<SmallVector<int64_t>> partOfLayer = deal();
  if (failed(partOfLayer))
    return signalPassFailure();
  for (auto function : getOperation().getOps<func::FuncOp>())
    if (failed(cut(function, *partOfLayer)))
      return signalPassFailure();
  if (failed(checkMapped(getOperation(), deviceMap, stagesOfUsers)))
    return signalPassFailure();
  dropWeights();
  Builder b(&getContext());
  setAxis(getOperation(), &qlora_mesh::pp, stages);
  getOperation()->setAttr(program::kStageAttr, b.getI64IntegerAttr(stage));
  recordDecision(getOperation(), getArgument(),
                 MetadataBuilder(&getContext())
                     .add("stages", int64_t(stages))
                     .add("stage", int64_t(stage))
                     .add("parts", int64_t(parts))
                     .add("sent_bytes", sentBytes)
                     .get());
}
