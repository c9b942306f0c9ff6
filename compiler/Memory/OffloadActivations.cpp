// SPDX-License-Identifier: MIT

// offload-activations: moves values that the backward reads to host memory.
//
//   %x  = model.add %a, %b                      // the forward of layer 0 ends
//   ...
//   %d1 = ...                                   // the backward of layer 2
//   %d0 = model.rms_norm_grad %x, ...           // the backward of layer 1
//
// becomes
//
//   %x  = model.add %a, %b
//   %h  = train.copy_to_host %x behind 1        // %x dies in the forward
//   ...
//   %x2 = train.copy_from_host %h               // copied during layer 2
//   %d1 = ...
//   %d0 = model.rms_norm_grad %x2, ...
//
// A zone is a run of backward ops of one layer. A value is a candidate if
//  - it has its own buffer, and is not a range of another value;
//  - the forward computes it from the step's inputs, not only from weights;
//  - exactly one zone reads it. With `hidden` and `crossing`, this must not be
//    the first zone, whose values would be copied back at once.
//
// Candidates of a zone are offloaded in this order:
//  1. values that cross from one layer to another: all recomputation starts
//     from them, and nothing smaller can replace them;
//  2. all others, by the seconds of their ops per byte, longest first.
//
// With `hidden`, the default, values are offloaded only as long as their copies
// are hidden by the layer's forward and by the previous zone. Then offloading
// costs no time, unlike recomputing. If no plan fits into memory, the driver
// requests `crossing`: all values that cross layers, even if their copies add
// time. rematerialize keeps or recomputes the other values.
//
// Results of matmuls of one x are offloaded together or not at all:
// concat-siblings makes them ranges of one buffer, which lives as long as any
// of them.
//
// The fetch for a zone is issued when the previous zone begins, so at most two
// layers of fetched values are on the GPU. A copy to the host may still run
// during the next layer; the layer after that waits for it (`behind`).

#include "compiler/Memory/StepMemory.h"
#include "compiler/Memory/StepProblem.h"
#include "compiler/Optimize/OpCost.h"
#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"

#include "mlir/IR/Remarks.h"

#include <map>

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

namespace qlora {
#define GEN_PASS_DEF_OFFLOADACTIVATIONS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

/// A value that may be moved to host memory.
struct Candidate {
  Value value;
  size_t reader = 0; ///< position in the step of the first backward reader
  int64_t bytes = 0;
  double seconds = 0; ///< time of the op that computes it
  bool crosses = false; ///< its readers are in another layer
  Value first; ///< first value of its all-or-none group; usually itself
};

class OffloadActivationsPass
    : public qlora::impl::OffloadActivationsBase<OffloadActivationsPass> {
public:
  using OffloadActivationsBase::OffloadActivationsBase;

private:
  void runOnOperation() override;
  FailureOr<DeviceProfile> profileOfGpu();
};

/// The copies of one accumulate step.
class ActivationCopies {
public:
  ActivationCopies(StepOp step, const DeviceProfile &device)
      : step(step), device(device), zones(zonesOf(step)), memory(step) {
    for (Operation &op : step.getBody().front())
      positions[&op] = positions.size();
  }

  void findCandidates(bool withFirstZone, bool onlyCrossing);
  void measure(int64_t weightRanks);
  /// Sorts candidates by priority. If `onlyHidden`, drops candidates whose
  /// copies would take extra time.
  void choose(bool onlyHidden);
  void insert();

  DictionaryAttr facts(StringRef values);
  int64_t count() const;

private:
  void findZones();
  bool isWhole(Value value) const;
  std::optional<unsigned> zoneOfReaders(Value value) const;
  void addCandidate(OpResult value, unsigned zone);
  void eraseExposed(SmallVector<Candidate> &values, double room) const;
  void insertZone(unsigned zone, ArrayRef<Candidate> values);

  StepOp step;
  const DeviceProfile &device;
  const StepZones zones;
  const StepMemory memory;
  DenseMap<Operation *, size_t> positions;
  std::map<unsigned, SmallVector<Candidate>> ofZones; ///< by the readers' zone
  std::map<unsigned, double> covers; ///< seconds that can hide a zone's copies
  std::map<unsigned, int64_t> layers;
  std::map<unsigned, Operation *> begins; ///< first op of each zone
  int64_t candidates = 0;
};

} // namespace

//===----------------------------------------------------------------------===//
// Candidates
//===----------------------------------------------------------------------===//

/// Returns the zone of the value's backward readers; nullopt if they are in no
/// zone or in several.
std::optional<unsigned> ActivationCopies::zoneOfReaders(Value value) const {
  std::optional<unsigned> zone;
  for (Operation *user : value.getUsers()) {
    if (!isBackward(user))
      continue;
    const unsigned found = zones.lookup(user);
    if (zone && *zone != found)
      return std::nullopt;
    zone = found;
  }
  return zone;
}

/// Returns x of the first matmul of a sum; null for any other value.
static Value inputOf(Value sum) {
  auto product = sum.getDefiningOp<WeightedMatmul>();
  while (product && product.getInit())
    product = product.getInit().getDefiningOp<WeightedMatmul>();
  return product ? product.getX() : Value();
}

void ActivationCopies::addCandidate(OpResult value, unsigned zone) {
  SmallVector<Candidate> &others = ofZones[zone];
  const Value x = inputOf(value);
  const auto *sibling = llvm::find_if(others, [&](const Candidate &other) {
    return x && inputOf(other.value) == x;
  });
  Candidate candidate{value,
                      positions.size(),
                      tensorBytes(tensorOf(value)),
                      secondsOf(value.getOwner(), device),
                      /*crosses=*/false,
                      sibling == others.end() ? value : sibling->first};
  for (Operation *user : value.getUsers())
    if (isBackward(user))
      candidate.reader = std::min(candidate.reader, positions.lookup(user));
  candidate.crosses = layerOf(value.getOwner()) != layers.at(zone);
  others.push_back(candidate);
  ++candidates;
}

void ActivationCopies::findZones() {
  for (Operation &op : step.getBody().front()) {
    if (!isBackward(&op))
      continue;
    const unsigned zone = zones.lookup(&op);
    begins.try_emplace(zone, &op);
    if (layerOf(&op) >= 0)
      layers.try_emplace(zone, layerOf(&op));
  }
}

/// Returns whether a separate buffer holds the value and nothing else.
bool ActivationCopies::isWhole(Value value) const {
  return memory.wholeOf(value) == value && !memory.rootOf(value).outside &&
         llvm::none_of(value.getUsers(), isView);
}

void ActivationCopies::findCandidates(bool withFirstZone, bool onlyCrossing) {
  findZones();
  DenseSet<Value> ofInputs(step.getBody().args_begin(),
                           step.getBody().args_end());
  for (Operation &op : step.getBody().front()) {
    if (isBackward(&op) || isReference(&op) ||
        llvm::none_of(op.getOperands(),
                      [&](Value value) { return ofInputs.contains(value); }))
      continue;
    ofInputs.insert_range(op.getResults());
    for (OpResult value : op.getResults()) {
      const std::optional<unsigned> zone = zoneOfReaders(value);
      if (!zone || !layers.contains(*zone) || isView(&op) || !isWhole(value) ||
          (*zone == layers.begin()->first && !withFirstZone))
        continue;
      if (layerOf(&op) != layers.at(*zone) || !onlyCrossing)
        addCandidate(value, *zone);
    }
  }
}

//===----------------------------------------------------------------------===//
// Selection
//===----------------------------------------------------------------------===//

/// Computes the time that hides each zone's copies: the shorter of its layer's
/// forward and the previous zone, minus the bus time of the layer's weights.
void ActivationCopies::measure(int64_t weightRanks) {
  std::map<int64_t, double> forward, bus; // by layer
  std::map<unsigned, double> backward;
  DenseSet<std::pair<Attribute, int64_t>> weights;
  for (Operation &op : step.getBody().front()) {
    const int64_t layer = layerOf(&op);
    if (isBackward(&op))
      backward[zones.lookup(&op)] += secondsOf(&op, device);
    else if (!isReference(&op))
      forward[layer] += secondsOf(&op, device);
    for (Value operand : op.getOperands())
      if (auto weight = operand.getDefiningOp<WeightOp>();
          weightRanks > 0 && weight &&
          weights.insert({weight.getParameterAttr(), layer}).second)
        bus[layer] += busSeconds(
            double(tensorBytes(tensorOf(weight))) / weightRanks, device);
  }
  for (auto [zone, layer] : layers)
    covers[zone] = std::min(forward[layer], zone > 0 ? backward[zone - 1] : 0) -
                   bus[layer];
}

/// Erases each value whose copy does not fit into `room` seconds together with
/// the copies of earlier values that were not erased.
void ActivationCopies::eraseExposed(SmallVector<Candidate> &values,
                                    double room) const {
  DenseMap<Value, double> seconds; // by the first value of a group
  for (const Candidate &value : values)
    seconds[value.first] += busSeconds(double(value.bytes), device);
  DenseMap<Value, bool> taken;
  llvm::erase_if(values, [&](const Candidate &value) {
    const double needed = seconds.at(value.first);
    const auto [known, isNew] = taken.try_emplace(value.first, needed <= room);
    if (isNew && known->second)
      room -= needed;
    return !known->second;
  });
}

void ActivationCopies::choose(bool onlyHidden) {
  for (auto &[zone, values] : ofZones) {
    llvm::stable_sort(values, [](const Candidate &a, const Candidate &b) {
      if (a.crosses != b.crosses)
        return a.crosses;
      return a.seconds * double(b.bytes) > b.seconds * double(a.bytes);
    });
    if (onlyHidden)
      eraseExposed(values, covers.at(zone));
  }
}

int64_t ActivationCopies::count() const {
  int64_t count = 0;
  for (const auto &[zone, values] : ofZones)
    count += values.size();
  return count;
}

//===----------------------------------------------------------------------===//
// The copies
//===----------------------------------------------------------------------===//

/// Returns the op after which `value` is copied. Skips row ops that follow
/// directly, because they may be fused with the op of `value`.
static Operation *placeOfCopy(Value value) {
  Operation *place = value.getDefiningOp();
  while (Operation *next = place->getNextNode()) {
    if (isBackward(next) || !(isa<RowOp>(next) || isView(next)))
      break;
    place = next;
  }
  return place;
}

void ActivationCopies::insertZone(unsigned zone, ArrayRef<Candidate> values) {
  Operation *begin =
      begins.contains(zone - 1) ? begins.at(zone - 1) : begins.at(zone);
  for (const Candidate &candidate : values) {
    Value value = candidate.value;
    OpBuilder builder(step.getContext());
    builder.setInsertionPointAfter(placeOfCopy(value));
    auto copy = CopyToHostOp::create(builder, value.getLoc(), value,
                                     int64_t(values.size()) - 1);
    copyStage(value.getDefiningOp(), copy);
    builder.setInsertionPoint(begin);
    // The fetch belongs to no layer, so it does not begin a zone.
    auto fetch = CopyFromHostOp::create(builder, value.getLoc(), copy);
    setPhase(fetch, StepPhase::Backward);
    value.replaceUsesWithIf(
        fetch, [](OpOperand &use) { return isBackward(use.getOwner()); });
  }
}

/// Inserts all copies. Fetches are in the order of their first readers.
void ActivationCopies::insert() {
  for (auto &[zone, values] : ofZones) {
    llvm::stable_sort(values, [](const Candidate &a, const Candidate &b) {
      return a.reader < b.reader;
    });
    insertZone(zone, values);
  }
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

DictionaryAttr ActivationCopies::facts(StringRef values) {
  int64_t bytes = 0, crossing = 0;
  for (const auto &[zone, taken] : ofZones)
    for (const Candidate &value : taken) {
      bytes += value.bytes;
      crossing += value.crosses;
    }
  return MetadataBuilder(step.getContext())
      .add("values", values)
      .add("batch", step.getBatch())
      .add("length", step.getLength())
      .add("candidates", candidates)
      .add("copied", count())
      .add("crossing", crossing)
      .add("bytes", bytes)
      .get();
}

/// Returns the device's profile. Fails for a CPU, which has no separate memory.
FailureOr<DeviceProfile> OffloadActivationsPass::profileOfGpu() {
  StatusOr<DeviceProfile> device = deviceProfileOrDefault(profile, target);
  if (!device.isOk())
    return getOperation().emitError(device.status().message());
  if (!device->gpu)
    return getOperation().emitError("expects a target with separate memory, "
                                    "but '")
           << target << "' uses host memory";
  return *device;
}

void OffloadActivationsPass::runOnOperation() {
  if (!llvm::is_contained({"none", "hidden", "crossing", "all"},
                          StringRef(values.getValue()))) {
    getOperation().emitError(
        "expects none, hidden, crossing or all as values, but got '")
        << values << "'";
    return signalPassFailure();
  }
  if (values == "none" || getOperation().getKind() != StepKind::Accumulate)
    return;
  const FailureOr<DeviceProfile> device = profileOfGpu();
  if (failed(device))
    return signalPassFailure();
  const bool all = values == "all";
  ActivationCopies copies(getOperation(), *device);
  copies.findCandidates(/*withFirstZone=*/all,
                        values == "crossing" || (blocks && !all));
  copies.measure(weights);
  copies.choose(/*onlyHidden=*/values == "hidden");
  copies.insert();
  valuesCopied += copies.count();
  recordDecision(getOperation(), getArgument(), copies.facts(values));
  remark::analysis(getOperation().getLoc(),
                   remark::RemarkOpts::name("copied").category(getArgument()))
      << remark::add("{0} values kept in host memory", copies.count());
}
