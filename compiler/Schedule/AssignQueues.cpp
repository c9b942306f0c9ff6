// SPDX-License-Identifier: MIT

// assign-queues: which queue runs a command, and what waits for what.
//
//   program.launch @matmul...(..., %gradient)        // last write of bucket 0
//   program.all_reduce 0 %bucket
//   program.launch ...                               // rest of the backward
//
// becomes
//
//   program.launch @matmul...(..., %gradient)
//   program.record 0 on 0
//   program.wait 0 on 1
//   program.all_reduce 0 %bucket {queue = 1}
//   program.launch ...
//   program.record 1 on 1
//   program.wait 1 on 0                              // at the end

#include "compiler/Passes.h"

#include "runtime/ABI/module.h"

using namespace mlir;
using namespace qlora::program;

namespace qlora {
#define GEN_PASS_DEF_ASSIGNQUEUES
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class AssignQueuesPass
    : public qlora::impl::AssignQueuesBase<AssignQueuesPass> {
  void runOnOperation() override;
};
} // namespace

/// Puts the collectives of one entry on the communication queue.
static void overlapCollectives(EntryOp entry) {
  SmallVector<AllReduceOp> collectives(entry.getBody().getOps<AllReduceOp>());
  if (collectives.empty())
    return;
  int64_t event = 0;
  OpBuilder builder(entry.getContext());
  Location loc = entry.getLoc();
  for (AllReduceOp collective : collectives) {
    builder.setInsertionPoint(collective);
    RecordOp::create(builder, loc, event, QLORA_QUEUE_COMPUTE);
    WaitOp::create(builder, loc, event, QLORA_QUEUE_COMMUNICATION);
    collective.setQueue(QLORA_QUEUE_COMMUNICATION);
    ++event;
  }
  // One event is enough: the queue runs its commands in order.
  builder.setInsertionPointToEnd(&entry.getBody().front());
  RecordOp::create(builder, loc, event, QLORA_QUEUE_COMMUNICATION);
  WaitOp::create(builder, loc, event, QLORA_QUEUE_COMPUTE);
}

void AssignQueuesPass::runOnOperation() {
  for (auto entry : getOperation().getOps<EntryOp>())
    overlapCollectives(entry);
}
