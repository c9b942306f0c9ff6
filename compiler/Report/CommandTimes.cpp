// SPDX-License-Identifier: MIT

// Commands to timeline items and back (CommandTimes.h).

#include "compiler/Report/CommandTimes.h"

#include "compiler/Schedule/Commands.h"

#include "runtime/ABI/module.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::program;

FailureOr<CommandTimes> CommandTimes::create(ModuleOp program,
                                             const DeviceProfile &device) {
  CommandTimes times(device);
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

/// The kernels that do a launch, one after another.
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

double CommandTimes::secondsOf(EntryOp entry, QueueSharing sharing) const {
  double end = 0;
  for (const TimelineSpan &span : of(entry, sharing))
    end = std::max(end, span.end);
  return end;
}

std::vector<TimelineSpan> CommandTimes::of(EntryOp entry,
                                           QueueSharing sharing) const {
  std::vector<TimelineItem> items;
  std::vector<size_t> firstItem;
  SmallVector<Operation *> commands = commandsOf(entry);
  for (Operation *command : commands) {
    firstItem.push_back(items.size());
    TimelineItem item;
    item.queue = queueOf(command);
    if (auto record = dyn_cast<RecordOp>(command)) {
      item.kind = TimelineItem::Kind::kRecord;
      item.event = record.getEvent();
    } else if (auto wait = dyn_cast<WaitOp>(command)) {
      item.kind = TimelineItem::Kind::kWait;
      item.event = wait.getEvent();
    } else if (isa<CollectiveOp>(command)) {
      item.kind = TimelineItem::Kind::kCollective;
    } else {
      for (const Work &work : worksOf(command)) {
        item.demand = demandOf(work, *device);
        items.push_back(item);
      }
      continue;
    }
    items.push_back(item);
  }
  std::vector<TimelineSpan> spans(items.size());
  (void)simulate(items, spans, sharing);
  std::vector<TimelineSpan> result;
  firstItem.push_back(items.size());
  for (size_t i = 0; i < commands.size(); ++i)
    result.push_back(
        {spans[firstItem[i]].start, spans[firstItem[i + 1] - 1].end});
  return result;
}
