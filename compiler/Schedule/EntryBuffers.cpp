// SPDX-License-Identifier: MIT

// Finds the lifetimes of buffers from the commands (EntryBuffers.h).

#include "compiler/Schedule/EntryBuffers.h"

#include "compiler/Schedule/Commands.h"
#include "compiler/Support/QueueOrder.h"

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

SmallVector<BufferLife> qlora::livesOf(EntryOp entry) {
  SmallVector<Operation *> commands = commandsOf(entry);
  std::vector<QueueCommand> order;
  for (Operation *command : commands)
    order.push_back(queueCommandOf(command));
  std::vector<CommandSpan> spans = spansBeside(order, QLORA_QUEUE_COMPUTE);
  SmallVector<BufferLife> lives;
  DenseMap<Operation *, size_t> index;
  for (auto [command, span] : llvm::zip_equal(commands, spans))
    for (Value operand : command->getOperands()) {
      BufferOp buffer = rootOf(operand);
      auto [known, isNew] = index.try_emplace(buffer, lives.size());
      if (isNew)
        lives.push_back({buffer, span.first, span.last});
      BufferLife &life = lives[known->second];
      life.first = std::min(life.first, span.first);
      life.last = std::max(life.last, span.last);
    }
  return lives;
}

SmallVector<BufferOp> qlora::largestBuffers(EntryOp entry, size_t count) {
  SmallVector<BufferOp> largest;
  for (auto buffer : entry.getBody().getOps<BufferOp>())
    if (buffer.getArena() == Arena::Activation)
      largest.push_back(buffer);
  llvm::stable_sort(largest, [](BufferOp a, BufferOp b) {
    return a.getBytes() > b.getBytes();
  });
  largest.resize(std::min(largest.size(), count));
  return largest;
}

static int64_t arenaBytes(ModuleOp program, bool onHost) {
  int64_t bytes = 0;
  for (auto arena : program.getOps<ArenaOp>())
    if (arena.isOnHost() == onHost)
      bytes += arena.getBytes();
  return bytes;
}

int64_t qlora::plannedBytes(ModuleOp program) {
  return arenaBytes(program, /*onHost=*/false);
}

int64_t qlora::plannedHostBytes(ModuleOp program) {
  return arenaBytes(program, /*onHost=*/true);
}
