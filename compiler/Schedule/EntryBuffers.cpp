// SPDX-License-Identifier: MIT

// From commands to lives (EntryBuffers.h).

#include "compiler/Schedule/EntryBuffers.h"

#include "compiler/Schedule/Commands.h"

#include "runtime/ABI/module.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::program;

static QueueCommand queueCommandOf(Operation *command) {
  unsigned queue = queueOf(command);
  if (auto record = dyn_cast<RecordOp>(command))
    return {QueueAction::Record, queue, unsigned(record.getEvent())};
  if (auto wait = dyn_cast<WaitOp>(command))
    return {QueueAction::Wait, queue, unsigned(wait.getEvent())};
  return {QueueAction::Work, queue, 0};
}

EntryBuffers qlora::buffersOf(EntryOp entry) {
  EntryBuffers buffers;
  DenseMap<Operation *, uint32_t> index;
  std::vector<std::vector<BufferUse>> uses;
  std::vector<QueueCommand> order;
  for (Operation *command : commandsOf(entry)) {
    order.push_back(queueCommandOf(command));
    std::vector<BufferUse> &used = uses.emplace_back();
    for (Value operand : command->getOperands()) {
      BufferOp buffer = rootOf(operand);
      auto [it, added] = index.try_emplace(buffer, buffers.ops.size());
      if (added)
        buffers.ops.push_back(buffer);
      used.push_back({it->second});
    }
  }
  std::vector<uint32_t> views(buffers.ops.size(), kNotAView);
  buffers.lives = computeLiveness(uses, views,
                                  spansBeside(order, QLORA_QUEUE_COMPUTE));
  return buffers;
}
