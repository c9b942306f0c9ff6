// SPDX-License-Identifier: MIT

// schedule-gathers: gathers weights while the previous layer is computed.
//
//   %a = model.gather_weight @layer0.a
//   %x = model.linear %h, %a
//   %b = model.gather_weight @layer1.b
//   %y = model.linear %x, %b
//
// becomes
//
//   %a = model.gather_weight @layer0.a
//   %b = model.gather_weight @layer1.b       // overlaps with the matmul
//   %x = model.linear %h, %a
//   %y = model.linear %x, %b
//
// Gathering one layer ahead already hides all communication that can be hidden.
// So the limit for gathered weights is the bytes of the largest layer plus the
// bytes of the largest weight: while that weight is in use, the next layer is
// gathered. Only a weight outside of the layers may exceed the limit. For
// weights from the host, the limit includes the rank's own shards.

#include "compiler/Memory/StepProblem.h"
#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

namespace qlora {
#define GEN_PASS_DEF_SCHEDULEGATHERS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

class ScheduleGathersPass
    : public qlora::impl::ScheduleGathersBase<ScheduleGathersPass> {
  void runOnOperation() override;
};

/// A gather, and the positions of its first and last reader among the step's
/// other ops. If a forward gather also has readers in the backward, `last` is
/// its last forward reader: other gathers should not wait for the backward.
struct Gather {
  GatherWeightOp op;
  size_t first = 0, last = 0;
  int64_t bytes = 0;
};

} // namespace

/// Returns the gathers in order; `others` gets all other ops of the step.
static SmallVector<Gather> findGathers(StepOp step,
                                       SmallVector<Operation *> &others) {
  SmallVector<Gather> gathers;
  DenseMap<Operation *, size_t> positions;
  for (Operation &op : step.getBody().front()) {
    if (auto gather = dyn_cast<GatherWeightOp>(op); gather && !op.use_empty()) {
      gathers.push_back({gather, 0, 0, tensorBytes(tensorOf(gather))});
      continue;
    }
    positions[&op] = others.size();
    others.push_back(&op);
  }
  for (Gather &gather : gathers) {
    gather.first = others.size();
    for (Operation *user : gather.op->getUsers()) {
      gather.first = std::min(gather.first, positions.lookup(user));
      if (isBackward(user) == isBackward(gather.op))
        gather.last = std::max(gather.last, positions.lookup(user));
    }
  }
  return gathers;
}

/// Returns the bytes of the largest layer's gathers, forward or backward, plus
/// the largest weight of a layer.
static int64_t roomFor(StepOp step, ArrayRef<Gather> gathers) {
  const StepZones zones = zonesOf(step);
  int64_t largest = 0, weight = 0, bytes = 0;
  std::optional<UsePlace> before;
  for (const Gather &gather : gathers) {
    const UsePlace place = UsePlace::of(gather.op, zones);
    if (place.layer < 0)
      continue;
    bytes = before == place ? bytes + gather.bytes : gather.bytes;
    before = place;
    largest = std::max(largest, bytes);
    weight = std::max(weight, gather.bytes);
  }
  return largest + weight;
}

/// Returns the first position from `earliest` on at which earlier gathers leave
/// enough memory for gather `i`.
static size_t placeFor(ArrayRef<Gather> gathers, size_t i, size_t earliest,
                       int64_t room) {
  size_t place = earliest;
  int64_t held = gathers[i].bytes;
  for (const Gather &other : gathers.take_front(i))
    if (other.last >= place)
      held += other.bytes;
  while (held > room && place < gathers[i].first) {
    for (const Gather &other : gathers.take_front(i))
      if (other.last == place)
        held -= other.bytes;
    ++place;
  }
  return std::min(place, gathers[i].first);
}

void ScheduleGathersPass::runOnOperation() {
  SmallVector<Operation *> others;
  const SmallVector<Gather> gathers = findGathers(getOperation(), others);
  if (gathers.empty())
    return;
  const int64_t room = roomFor(getOperation(), gathers);
  const size_t backward =
      llvm::find_if(others, [](Operation *op) { return isBackward(op); }) -
      others.begin();
  size_t earliest = 0;
  for (auto [i, gather] : llvm::enumerate(gathers)) {
    if (isBackward(gather.op))
      earliest = std::max(earliest, backward);
    earliest = placeFor(gathers, i, earliest, room);
    GatherWeightOp(gather.op)->moveBefore(others[earliest]);
    gathersAhead += earliest < gather.first;
  }
  recordDecision(getOperation(), getArgument(),
                 MetadataBuilder(&getContext())
                     .add("gathers", gathers.size())
                     .add("room_bytes", room)
                     .get());
}
