// SPDX-License-Identifier: MIT

// assign-queues: assigns commands to queues, and adds events between queues.
//
//   program.launch @matmul...(..., %gradient)        // last write of bucket 0
//   program.collective all_reduce 0 %bucket
//   program.launch ...                               // rest of the backward
//
// becomes
//
//   program.launch @matmul...(..., %gradient)
//   program.record 0 on compute
//   program.wait 0 on communication
//   program.collective all_reduce 0 %bucket
//   program.launch ...
//   program.record 1 on communication
//   program.wait 1 on compute  // at the end
//
// If kernels of the copy queue run concurrently with those of the compute queue
// (TargetTraits.h), a frozen weight is decoded while an earlier GEMM runs
// (IssueAhead.h):
//
//   program.launch @matmul...(..., %numbers0, ...)
//   program.launch @decode...(%w1, %numbers1)
//   program.launch @matmul...(..., %numbers1, ...)
//
// becomes
//
//   program.record 0 on compute  // the memory of %numbers1 is free
//   program.wait 0 on copy
//   program.launch @decode...(%w1, %numbers1) ... on copy
//   program.launch @matmul...(..., %numbers0, ...)
//   program.record 1 on copy
//   program.wait 1 on compute
//   program.launch @matmul...(..., %numbers1, ...)

#include "compiler/Passes.h"
#include "compiler/Schedule/Commands.h"
#include "compiler/Schedule/IssueAhead.h"
#include "compiler/Support/QueueOrder.h"
#include "compiler/Support/TargetTraits.h"

#include "runtime/ABI/module.h"

#include "mlir/IR/Remarks.h"
#include "mlir/IR/Threading.h"

#include <array>

using namespace mlir;
using namespace qlora;
using namespace qlora::program;

namespace qlora {
#define GEN_PASS_DEF_ASSIGNQUEUES
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class AssignQueuesPass
    : public qlora::impl::AssignQueuesBase<AssignQueuesPass> {
public:
  using AssignQueuesBase::AssignQueuesBase;

private:
  void runOnOperation() override;
  void assign(EntryOp entry, const SymbolTable &symbols,
              const DeviceProfile &device, bool mayIssueAhead);
};

/// Byte ranges that commands of queues other than compute have touched so far.
class TouchedRanges {
public:
  /// Appends the commands that an access to `range` must wait for: commands
  /// that wrote a byte of it and, if `isWrite`, commands that read a byte.
  void findConflicts(const ByteRange &range, bool isWrite,
                     std::vector<size_t> &found) const {
    auto known = touches.find({range.unplaced, unsigned(range.arena)});
    if (known == touches.end())
      return;
    for (const Touch &touch : known->second)
      if ((isWrite || touch.isWrite) && touch.range.overlaps(range))
        found.push_back(touch.command);
  }
  void add(const ByteRange &range, bool isWrite, size_t command) {
    touches[{range.unplaced, unsigned(range.arena)}].push_back(
        {range, isWrite, command});
  }

private:
  struct Touch {
    ByteRange range;
    bool isWrite;
    size_t command;
  };
  DenseMap<std::pair<Operation *, unsigned>, std::vector<Touch>> touches;
};

/// Finds the newest copy to the saved arena that the compute queue must wait
/// for (program.copy's `behind`). The copied values are freed after that wait.
class AwaitedCopies {
public:
  void add(Operation *command, size_t position) {
    auto copy = dyn_cast<CopyOp>(command);
    if (!copy || !copy.getBehind())
      return;
    const size_t behind = *copy.getBehind();
    if (copies.size() > behind)
      awaited = copies[copies.size() - 1 - behind];
    if (rootOf(copy.getTarget()).getArena() == Arena::Saved)
      copies.push_back(position);
  }
  std::optional<size_t> newest() const { return awaited; }

private:
  SmallVector<size_t> copies;
  std::optional<size_t> awaited;
};
} // namespace

/// Returns the commands that each command must wait for, in addition to earlier
/// commands of its own queue. An extra last command stands for the end of the
/// entry and waits for all others.
/// - A command of another queue than compute waits for all earlier commands of
///   the compute queue. The memory that it writes is then free, wherever
///   plan-memory puts it.
/// - A command of the compute queue waits for AwaitedCopies::newest().
/// - Every command waits for commands that wrote bytes that it accesses, and
///   for commands that read bytes that it writes.
static std::vector<QueuedWork> orderOf(ArrayRef<Operation *> commands) {
  std::vector<QueuedWork> order(commands.size() + 1);
  TouchedRanges touched;
  AwaitedCopies copies;
  std::array<std::optional<size_t>, QLORA_QUEUE_COUNT> newest;
  for (auto [i, command] : llvm::enumerate(commands)) {
    QueuedWork &work = order[i];
    work.queue = queueOf(command);
    if (work.queue != QLORA_QUEUE_COMPUTE && newest[QLORA_QUEUE_COMPUTE])
      work.after.push_back(*newest[QLORA_QUEUE_COMPUTE]);
    if (work.queue == QLORA_QUEUE_COMPUTE && copies.newest())
      work.after.push_back(*copies.newest());
    copies.add(command, i);
    SmallVector<BufferAccess> accesses = accessesOf(command);
    for (auto [buffer, access] : accesses)
      touched.findConflicts(rangeOf(buffer), access & QLORA_WRITE, work.after);
    if (work.queue != QLORA_QUEUE_COMPUTE)
      for (auto [buffer, access] : accesses)
        touched.add(rangeOf(buffer), access & QLORA_WRITE, i);
    newest[work.queue] = i;
  }
  order.back().queue = QLORA_QUEUE_COMPUTE;
  for (std::optional<size_t> last : newest)
    if (last)
      order.back().after.push_back(*last);
  return order;
}

/// Adds the events that enforce orderOf(). Returns their number.
static int64_t addEvents(EntryOp entry) {
  SmallVector<Operation *> commands = commandsOf(entry);
  std::vector<QueuedWork> order = orderOf(commands);
  std::vector<QueueWait> waits = placeWaits(order);
  DenseSet<size_t> producers;
  for (const QueueWait &wait : waits)
    producers.insert(wait.producer);
  DenseMap<size_t, int64_t> events;
  OpBuilder builder(entry.getContext());
  Location loc = entry.getLoc();
  const QueueWait *next = waits.data(), *end = next + waits.size();
  for (size_t i = 0; i < order.size(); ++i) {
    if (i < commands.size())
      builder.setInsertionPoint(commands[i]);
    else
      builder.setInsertionPointToEnd(&entry.getBody().front());
    if (i > 0 && producers.contains(i - 1)) {
      int64_t event = events.size();
      events[i - 1] = event;
      RecordOp::create(builder, loc, event, Queue(order[i - 1].queue));
    }
    for (; next != end && next->consumer == i; ++next)
      WaitOp::create(builder, loc, events.at(next->producer),
                     Queue(order[i].queue));
  }
  return events.size();
}

void AssignQueuesPass::assign(EntryOp entry, const SymbolTable &symbols,
                              const DeviceProfile &device, bool mayIssueAhead) {
  unsigned ahead = mayIssueAhead ? issueAhead(entry, symbols, device) : 0;
  int64_t events = addEvents(entry);
  launchesAhead += ahead;
  eventsAdded += events;
  remark::passed(entry.getLoc(),
                 remark::RemarkOpts::name("queues").category(getArgument()))
      << remark::add("{0} {1}: {2} launches ahead, {3} events",
                     stringifyEntryKind(entry.getKind()), entry.getLength(),
                     ahead, events);
}

void AssignQueuesPass::runOnOperation() {
  std::optional<TargetTraits> traits = targetTraits(target);
  if (!traits) {
    getOperation().emitError("assign-queues does not know the target '")
        << target << "'";
    return signalPassFailure();
  }
  StatusOr<DeviceProfile> device = deviceProfileOrDefault(profile, target);
  if (!device.isOk()) {
    getOperation().emitError(device.status().message());
    return signalPassFailure();
  }
  const SymbolTable symbols(getOperation());
  const bool mayIssueAhead = traits->kernelsBesideCompute && !inOrder;
  SmallVector<EntryOp> entries(getOperation().getOps<EntryOp>());
  parallelForEach(&getContext(), entries, [&](EntryOp entry) {
    assign(entry, symbols, *device, mayIssueAhead);
  });
}
