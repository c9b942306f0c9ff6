// SPDX-License-Identifier: MIT

// Converts commands to timeline items, and simulated items to command spans.

#include "compiler/Report/CommandTimes.h"

#include "compiler/Schedule/Commands.h"

#include "runtime/ABI/module.h"
#include "runtime/Base/GroupSizes.h"
#include "runtime/Predict/CollectiveCost.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::program;

FailureOr<CommandTimes> CommandTimes::create(ModuleOp program,
                                             const DeviceProfile &device,
                                             int64_t ranks) {
  CommandTimes times(program, device, ranks);
  for (auto arena : program.getOps<ArenaOp>())
    if (arena.isOnHost())
      times.onHost.insert(unsigned(arena.getKind()));
  for (auto kernel : program.getOps<program::KernelOp>()) {
    times.kernels[kernel.getSymName()] = kernel;
    if (kernel.getOp())
      continue;
    FailureOr<SmallVector<RowOperand>> operands = rowOperands(kernel);
    if (failed(operands))
      return failure();
    times.rows[kernel] = std::move(*operands);
  }
  return times;
}

/// Returns the work of each device kernel that a launch runs, in order.
std::vector<Work> CommandTimes::worksOf(LaunchOp launch) const {
  program::KernelOp kernel = kernels.lookup(launch.getKernel());
  if (kernel.getOp()) {
    KernelRequest request = requestOf(launch, findKernelOp(*kernel.getOp()));
    return device->gpu
               ? cudaKernelWork(request, findKernelRow(kernel.getSymName()))
               : std::vector<Work>{kernelWork(request)};
  }
  ArrayRef<RowOperand> operands = rows.find(kernel)->second;
  double touched = 0;
  for (auto [i, buffer, access] :
       llvm::enumerate(launch.getOperands(), launch.getAccess())) {
    uint64_t bytes = ownBytes(buffer);
    touched += double(bytes - operands[i].skippedBytes(bytes)) *
               (access == QLORA_READ_WRITE ? 2 : 1);
  }
  return {rowWork(touched, 0)};
}

std::vector<Work> CommandTimes::worksOf(Operation *command) const {
  if (auto launch = dyn_cast<LaunchOp>(command))
    return worksOf(launch);
  double touched = 0;
  for (Value buffer : command->getOperands())
    touched += double(ownBytes(buffer));
  return {rowWork(touched, 0)};
}

Demand CommandTimes::demandOfCollective(CollectiveOp collective) const {
  uint64_t bytes = 0;
  for (Value buffer : collective->getOperands())
    bytes = std::max(bytes, rangeOf(buffer).bytes);
  // If the number of ranks is unknown, assume a mesh without data parallelism.
  const GroupSizes groups = GroupSizes(model::meshOf(program)).onAtLeast(ranks);
  const auto group = unsigned(collective.getGroup());
  return collectiveDemand(unsigned(collective.getKind()), double(bytes),
                          groups[group], groups.stride(group), *device);
}

double CommandTimes::bytesOverBus(Operation *command) const {
  auto launch = dyn_cast<LaunchOp>(command);
  program::KernelOp kernel =
      launch ? kernels.lookup(launch.getKernel()) : program::KernelOp();
  const qlora::KernelOp *op =
      kernel && kernel.getOp() ? findKernelOp(*kernel.getOp()) : nullptr;
  double bytes = 0;
  for (auto [i, use] : llvm::enumerate(accessesOf(command))) {
    const bool isTable = op && op->operands[i].isReadByRows;
    if (onHost.contains(unsigned(rootOf(use.buffer).getArena())) && !isTable)
      bytes += double(ownBytes(use.buffer)) *
               (use.access == QLORA_READ_WRITE ? 2 : 1);
  }
  return bytes;
}

TimelineItem CommandTimes::itemOf(Operation *command) const {
  TimelineItem item;
  item.queue = queueOf(command);
  if (isa<CopyOp>(command)) {
    item.kind = TimelineItem::Kind::kCollective;
    item.demand.serial = busSeconds(bytesOverBus(command), *device);
    return item;
  }
  if (auto collective = dyn_cast<CollectiveOp>(command)) {
    item.kind = TimelineItem::Kind::kCollective;
    item.demand = demandOfCollective(collective);
  } else if (auto record = dyn_cast<RecordOp>(command)) {
    item.kind = TimelineItem::Kind::kRecord;
    item.event = record.getEvent();
  } else {
    item.kind = TimelineItem::Kind::kWait;
    item.event = cast<WaitOp>(command).getEvent();
  }
  return item;
}

/// If `spans` is not null, fills it with one span per command of the entry.
Timeline CommandTimes::timelineOf(EntryOp entry, QueueSharing sharing,
                                  std::vector<TimelineSpan> *spans) const {
  std::vector<TimelineItem> items;
  std::vector<size_t> firstItem;
  for (Operation *command : commandsOf(entry)) {
    firstItem.push_back(items.size());
    const double overBus = device->gpu ? bytesOverBus(command) : 0;
    if (isa<CollectiveOp, RecordOp, WaitOp>(command) ||
        (isa<CopyOp>(command) && overBus > 0)) {
      items.push_back(itemOf(command));
      continue;
    }
    for (const Work &work : worksOf(command)) {
      TimelineItem item;
      item.queue = queueOf(command);
      item.demand = demandOf(work, *device);
      items.push_back(item);
    }
    items.back().demand.serial += busSeconds(overBus, *device);
  }
  if (!spans)
    return simulate(items, {}, sharing);
  firstItem.push_back(items.size());
  std::vector<TimelineSpan> all(items.size());
  const Timeline timeline = simulate(items, all, sharing);
  for (size_t i = 0; i + 1 < firstItem.size(); ++i)
    spans->push_back({all[firstItem[i]].start, all[firstItem[i + 1] - 1].end});
  return timeline;
}

double CommandTimes::secondsOf(EntryOp entry, QueueSharing sharing) const {
  return timelineOf(entry, sharing).seconds;
}

std::vector<TimelineSpan> CommandTimes::of(EntryOp entry,
                                           QueueSharing sharing) const {
  std::vector<TimelineSpan> spans;
  (void)timelineOf(entry, sharing, &spans);
  return spans;
}

EntryOp qlora::largestMicroBatch(ModuleOp program, EntryKind kind) {
  const auto tokensOf = [](EntryOp entry) {
    return entry.getBatch() * entry.getLength();
  };
  EntryOp largest;
  for (auto entry : program.getOps<EntryOp>())
    if (entry.getKind() == kind &&
        (!largest || tokensOf(entry) > tokensOf(largest)))
      largest = entry;
  return largest;
}

StepSeconds CommandTimes::ofStep(int64_t microBatches) const {
  StepSeconds step;
  const auto add = [&](EntryKind kind, int64_t times) {
    EntryOp entry = largestMicroBatch(program, kind);
    if (!entry || times == 0)
      return;
    const Timeline timeline = timelineOf(entry, QueueSharing::kSideBySide);
    step.all += double(times) * timeline.seconds;
    step.exposedCommunication += double(times) * timeline.exposedCommunication;
  };
  add(EntryKind::Accumulate, microBatches - 1);
  add(EntryKind::AccumulateLast, 1);
  add(EntryKind::Update, 1);
  return step;
}
