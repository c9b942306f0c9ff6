// SPDX-License-Identifier: MIT

// Computes categories, lifetimes and the peak (EntryTimeline.h).

#include "compiler/Report/EntryTimeline.h"

#include "compiler/Schedule/Commands.h"
#include "compiler/Schedule/EntryBuffers.h"

#include "runtime/ABI/module.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::program;

StringRef qlora::nameOf(BufferCategory category) {
  static constexpr StringLiteral kNames[] = {
      "gathered", "saved",    "recomputed", "decoded",
      "forward",  "backward", "workspace"};
  return kNames[static_cast<size_t>(category)];
}

/// Returns true for a launch that reads only frozen weights, from the frozen
/// arena or from `gathered` buffers.
static bool readsOnlyFrozen(LaunchOp launch,
                            const DenseMap<Operation *, size_t> &gathered) {
  bool readsAny = false;
  for (auto [operand, access] :
       llvm::zip_equal(launch.getOperands(), launch.getAccess())) {
    if (!(access & QLORA_READ))
      continue;
    readsAny = true;
    Arena arena = rootOf(operand).getArena();
    if (arena != Arena::Frozen && arena != Arena::Host &&
        !gathered.contains(rootOf(operand)))
      return false;
  }
  return readsAny;
}

/// Returns the buffers that are computed only from frozen weights.
static DenseSet<Operation *>
decodedBuffers(ArrayRef<Operation *> commands,
               const DenseMap<Operation *, size_t> &gathered) {
  DenseSet<Operation *> decoded, others;
  for (Operation *command : commands) {
    auto launch = dyn_cast<LaunchOp>(command);
    DenseSet<Operation *> &written =
        launch && readsOnlyFrozen(launch, gathered) ? decoded : others;
    for (Value buffer : buffersWritten(command))
      written.insert(rootOf(buffer));
  }
  for (Operation *buffer : others)
    decoded.erase(buffer);
  return decoded;
}

static BufferCategory purposeOf(BufferOp buffer,
                                const DenseMap<Operation *, size_t> &gathered,
                                const DenseSet<Operation *> &decoded) {
  if (buffer.getArena() == Arena::Workspace)
    return BufferCategory::Workspace;
  if (gathered.contains(buffer))
    return BufferCategory::Gathered;
  if (buffer.getSaved())
    return BufferCategory::Saved;
  if (decoded.contains(buffer))
    return BufferCategory::Decoded;
  if (buffer.getRecomputed())
    return BufferCategory::Recomputed;
  return buffer.getBackward() ? BufferCategory::Backward
                              : BufferCategory::Forward;
}

static TimelinePeak peakOf(const EntryTimeline &timeline) {
  std::vector<int64_t> change(timeline.commands.size() + 1);
  for (const TimelineBuffer &buffer : timeline.buffers) {
    if (buffer.category == BufferCategory::Workspace)
      continue;
    int64_t bytes = BufferOp(buffer.op).getBytes();
    change[buffer.first] += bytes;
    change[buffer.last + 1] -= bytes;
  }
  TimelinePeak peak;
  int64_t alive = 0;
  for (auto [command, bytes] : llvm::enumerate(change)) {
    alive += bytes;
    if (alive > peak.bytes) {
      peak.bytes = alive;
      peak.command = command;
    }
  }
  for (const TimelineBuffer &buffer : timeline.buffers)
    if (buffer.first <= peak.command && peak.command <= buffer.last)
      peak.byCategory[size_t(buffer.category)] +=
          BufferOp(buffer.op).getBytes();
  return peak;
}

EntryTimeline qlora::timelineOf(EntryOp entry) {
  EntryTimeline timeline;
  timeline.entry = entry;
  timeline.commands = commandsOf(entry);
  const auto gathered = gatheredBuffers(timeline.commands);
  DenseSet<Operation *> decoded = decodedBuffers(timeline.commands, gathered);
  for (auto [buffer, first, last] : livesOf(entry)) {
    Arena arena = BufferOp(buffer).getArena();
    if (arena == Arena::Activation || arena == Arena::Workspace)
      timeline.buffers.push_back(
          {buffer, first, last, purposeOf(buffer, gathered, decoded)});
  }
  timeline.peak = peakOf(timeline);
  return timeline;
}
