// SPDX-License-Identifier: MIT

// plan-dequant: decides where stored weights are decoded.
//
//   %y  = model.linear %x, %w                  // forward
//   ...
//   %y2 = model.linear %x, %w                  // recomputed
//   %dx = model.linear %dy, %w layout in_out
//
// with %w in 4 bits stays as it is (`tiled`: each GEMM decodes W a few rows at
// a time, in cache), or becomes (`per-use`)
//
//   %y  = model.linear %x, %w
//   ...
//   %n  = train.decode %w                      // shared by nearby uses
//   %y2 = model.linear %x, %n
//   %dx = model.linear %dy, %n layout in_out
//
// or the parameter gets the decoded type (`once`): the loader quantizes and
// decodes it once.
//
// Panels (`tiled`) decode once per use and need no memory. Scratch (`per-use`)
// decodes once per group of uses to memory, and lives as long as the group. It
// must be 3 % faster, except on a GPU, whose GEMM decodes all of W first unless
// x has few rows. Resident weights (`once`) need memory for their decoded
// values: `resident-bytes` are given to the weights that save most seconds per
// byte.

#include "compiler/Memory/StepProblem.h"
#include "compiler/Optimize/OpCost.h"
#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"
#include "compiler/Support/TargetTraits.h"

#include "mlir/IR/Remarks.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

namespace qlora {
#define GEN_PASS_DEF_PLANDEQUANT
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

enum class Form { Panel, Scratch, Resident };

/// Uses of a weight in one place of a step.
struct UseGroup {
  StepOp step;
  UsePlace place;
  SmallVector<OpOperand *> uses;
  Type compute; ///< element type of the other operand
  DecodeSeconds seconds;
  Form form = Form::Panel;
  StringRef reason = {}; ///< why this form was chosen

  double chosenSeconds() const {
    return form == Form::Panel ? seconds.panel : seconds.scratch;
  }
};

/// A parameter that is stored in a type other than the one it is used in.
struct StoredWeight {
  model::ParameterOp parameter;
  SmallVector<UseGroup> groups;
  bool canBeResident = true;
  bool isResident = false;

  int64_t residentBytes() const;
  /// Returns the seconds that a resident weight saves per micro-batch, compared
  /// with the chosen panel or scratch.
  double savedByResidence() const;
};

class PlanDequantPass : public qlora::impl::PlanDequantBase<PlanDequantPass> {
public:
  using PlanDequantBase::PlanDequantBase;

private:
  void runOnOperation() override;
  void collect();
  void collectUse(OpOperand &use);
  void choose(const DeviceProfile &device, const TargetTraits &traits);
  void chooseResident();
  void apply(StoredWeight &weight);
  ArrayAttr facts();

  llvm::MapVector<Attribute, StoredWeight> weights;
  StepZones zones;
};

} // namespace

/// Minimum gain in time, as a fraction, of scratch over panels. Scratch takes
/// memory and memory bandwidth, which other processes share, while a panel
/// stays in a cache. If predicted times are closer, panels are at least as fast
/// in measurements (bench/decode.py).
static constexpr double kScratchGain = 0.03;
/// Times that differ by less than this fraction are the same up to rounding.
static constexpr double kSameTime = 1e-6;
static constexpr const char *kGainsTooLittle =
    "per-use would gain less than 3 %";

int64_t StoredWeight::residentBytes() const {
  RankedTensorType stored = model::ParameterOp(parameter).getTensorType();
  return tensorBytes(stored.clone(groups.front().compute)) -
         tensorBytes(stored);
}

double StoredWeight::savedByResidence() const {
  double saved = 0;
  for (const UseGroup &group : groups)
    if (const StepKind kind = StepOp(group.step).getKind();
        kind == StepKind::Accumulate || kind == StepKind::Decode)
      saved += group.chosenSeconds() - group.seconds.resident;
  return saved;
}

static StringRef nameOf(Form form) {
  static constexpr StringLiteral kNames[] = {"tiled", "per-use", "once"};
  return kNames[static_cast<int>(form)];
}

//===----------------------------------------------------------------------===//
// Weights, and uses that share a decode
//===----------------------------------------------------------------------===//

void PlanDequantPass::collectUse(OpOperand &use) {
  Operation *op = use.getOwner();
  auto weightOp = use.get().getDefiningOp<WeightOp>();
  StoredWeight &weight = weights[weightOp.getParameterAttr()];
  if (!weight.parameter)
    weight.parameter = SymbolTable::lookupNearestSymbolFrom<model::ParameterOp>(
        weightOp, weightOp.getParameterAttr());
  auto product = dyn_cast<WeightedMatmul>(op);
  Type compute = product && &use == &product.getWeightMutable()
                     ? product.getDecodedType()
                     : Type();
  if (!compute) {
    weight.canBeResident = false;
    return;
  }
  auto step = cast<StepOp>(op->getParentOp());
  const UsePlace place = UsePlace::of(op, zones);
  for (UseGroup &group : weight.groups) {
    if (group.step == step && group.place == place &&
        group.compute == compute) {
      group.uses.push_back(&use);
      return;
    }
    weight.canBeResident &= group.compute == compute;
  }
  weight.groups.push_back({step, place, {&use}, compute});
}

/// Collects uses in program order, so the first use of a group is its earliest.
void PlanDequantPass::collect() {
  for (auto step : getOperation().getOps<StepOp>()) {
    zones = zonesOf(step);
    for (Operation &op : step.getBody().front())
      for (OpOperand &operand : op.getOpOperands())
        if (operand.get().getDefiningOp<WeightOp>())
          collectUse(operand);
  }
  weights.remove_if([](auto &entry) { return entry.second.groups.empty(); });
}

//===----------------------------------------------------------------------===//
// Choice
//===----------------------------------------------------------------------===//

void PlanDequantPass::choose(const DeviceProfile &device,
                             const TargetTraits &traits) {
  for (auto &[name, weight] : weights) {
    for (UseGroup &group : weight.groups) {
      group.seconds = decodeSeconds(group.uses, group.compute, device);
      // A GPU's GEMM decodes the whole weight first, which takes as long as a
      // decode to scratch, except for few rows.
      const double gain = traits.decodesInPanels ? kScratchGain : -kSameTime;
      bool isFaster = group.seconds.scratch < (1 - gain) * group.seconds.panel;
      if (form == "per-use" || (form == "auto" && isFaster))
        group.form = Form::Scratch;
      group.reason = form != "auto"     ? "the only form allowed"
                     : isFaster && !traits.decodesInPanels
                         ? "a GPU decodes the whole weight anyway"
                     : isFaster ? "one decode for all uses is faster"
                     : traits.decodesInPanels ? kGainsTooLittle
                                              : "few rows need no decode";
    }
    weight.isResident = form == "once" && weight.canBeResident;
  }
}

/// Chooses resident weights by most seconds saved per byte; ties follow the
/// module's order.
void PlanDequantPass::chooseResident() {
  SmallVector<std::pair<double, StoredWeight *>> candidates;
  for (auto &[name, weight] : weights)
    if (weight.canBeResident && weight.savedByResidence() > 0)
      candidates.push_back(
          {weight.savedByResidence() / weight.residentBytes(), &weight});
  llvm::stable_sort(candidates,
                    [](auto &a, auto &b) { return a.first > b.first; });
  int64_t left = residentBytes;
  for (auto &[value, weight] : candidates) {
    if (weight->residentBytes() > left)
      continue;
    left -= weight->residentBytes();
    weight->isResident = true;
    for (UseGroup &group : weight->groups)
      group.reason = "saves the most time per remaining byte";
  }
}

//===----------------------------------------------------------------------===//
// Rewriting and report
//===----------------------------------------------------------------------===//

static void insertDecode(UseGroup &group) {
  Operation *first = group.uses.front()->getOwner();
  Value stored = group.uses.front()->get();
  OpBuilder builder(first);
  auto decode = DecodeOp::create(
      builder, stored.getLoc(),
      cast<RankedTensorType>(stored.getType()).clone(group.compute), stored);
  copyStage(first, decode);
  for (OpOperand *use : group.uses)
    use->set(decode.getResult());
}

/// Decodes the weight at load time. The file and 4-bit values are unchanged.
static void makeResident(StoredWeight &weight) {
  model::ParameterOp parameter = weight.parameter;
  Type element = parameter.getTensorType().getElementType();
  if (!parameter.getFileType())
    parameter.setFileTypeAttr(TypeAttr::get(element));
  if (isa<QuantizedType>(element) && !parameter.getQuantized())
    parameter.setQuantizedAttr(TypeAttr::get(element));
  Type compute = weight.groups.front().compute;
  RankedTensorType numbers = parameter.getTensorType().clone(compute);
  parameter.setType(numbers);
  for (UseGroup &group : weight.groups)
    for (OpOperand *use : group.uses)
      use->get().setType(numbers);
}

void PlanDequantPass::apply(StoredWeight &weight) {
  if (weight.isResident) {
    ++keptResident;
    return makeResident(weight);
  }
  for (UseGroup &group : weight.groups) {
    ++(group.form == Form::Scratch ? inScratch : inPanels);
    if (group.form == Form::Scratch)
      insertDecode(group);
  }
}

/// Returns metadata of every decision and its costs.
ArrayAttr PlanDequantPass::facts() {
  MLIRContext *context = &getContext();
  SmallVector<Attribute> rows;
  for (auto &[name, weight] : weights) {
    SmallVector<Attribute> groups;
    for (const UseGroup &group : weight.groups)
      groups.push_back(
          MetadataBuilder(context)
              .add("step", stringifyStepKind(StepOp(group.step).getKind()))
              .add("length", StepOp(group.step).getLength())
              .add("backward", group.place.isBackward)
              .add("uses", group.uses.size())
              .add("form",
                   nameOf(weight.isResident ? Form::Resident : group.form))
              .add("reason", group.reason)
              .add("tiled_seconds", group.seconds.panel)
              .add("per_use_seconds", group.seconds.scratch)
              .add("once_seconds", group.seconds.resident)
              .get());
    rows.push_back(MetadataBuilder(context)
                       .add("weight", cast<FlatSymbolRefAttr>(name).getValue())
                       .add("resident_bytes", weight.residentBytes())
                       .add("groups", groups)
                       .get());
  }
  return ArrayAttr::get(context, rows);
}

static void remarkOn(const StoredWeight &weight, const UseGroup &group,
                     StringRef pass) {
  Form form = weight.isResident ? Form::Resident : group.form;
  remark::passed(model::ParameterOp(weight.parameter).getLoc(),
                 remark::RemarkOpts::name(nameOf(form)).category(pass))
      << remark::add("{0} {1}, {2}, {3} uses: {4} (us: tiled {5:F1}, per-use "
                     "{6:F1}, once {7:F1} for {8} bytes more)",
                     stringifyStepKind(StepOp(group.step).getKind()),
                     StepOp(group.step).getLength(),
                     group.place.isBackward ? "backward" : "forward",
                     group.uses.size(), nameOf(form), group.seconds.panel * 1e6,
                     group.seconds.scratch * 1e6, group.seconds.resident * 1e6,
                     weight.residentBytes());
}

void PlanDequantPass::runOnOperation() {
  weights.clear();
  if (form != "auto" && form != "tiled" && form != "per-use" &&
      form != "once") {
    getOperation().emitError("expects auto, tiled, per-use or once as form, "
                             "but got '")
        << form << "'";
    return signalPassFailure();
  }
  StatusOr<DeviceProfile> device = deviceProfileOrDefault(profile, target);
  if (!device.isOk()) {
    getOperation().emitError(device.status().message());
    return signalPassFailure();
  }
  std::optional<TargetTraits> traits = targetTraits(target.getValue());
  if (!traits) {
    getOperation().emitError("plan-dequant does not know the target '")
        << target << "'";
    return signalPassFailure();
  }
  collect();
  choose(*device, *traits);
  if (form == "auto")
    chooseResident();
  // Record while the types are still the stored ones.
  recordDecision(getOperation(), getArgument(), facts());
  for (auto &[name, weight] : weights)
    for (const UseGroup &group : weight.groups)
      remarkOn(weight, group, getArgument());
  for (auto &[name, weight] : weights)
    apply(weight);
}
