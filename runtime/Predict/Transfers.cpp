// SPDX-License-Identifier: MIT

// Makes timeline items of the commands of stages, and checks their order.

#include "runtime/Predict/Transfers.h"

#include "runtime/Module/CommandWork.h"

namespace qlora {

/// Returns whether a command is a SEND or RECV with another pipeline stage.
static bool isBetweenStages(const LoadedModule &stage,
                            const qlora_command &command) {
  return stage.stages() > 1 && command.kind == QLORA_COMMAND_COLLECTIVE &&
         command.group == QLORA_GROUP_PP &&
         (command.collective == QLORA_COLLECTIVE_SEND ||
          command.collective == QLORA_COLLECTIVE_RECV);
}

static TimelineItem::Kind kindOf(const LoadedModule &stage,
                                 const qlora_command &command) {
  if (command.kind == QLORA_COMMAND_RECORD)
    return TimelineItem::Kind::kRecord;
  if (command.kind == QLORA_COMMAND_WAIT)
    return TimelineItem::Kind::kWait;
  if (!isBetweenStages(stage, command))
    return TimelineItem::Kind::kCollective;
  return command.collective == QLORA_COLLECTIVE_SEND
             ? TimelineItem::Kind::kSend
             : TimelineItem::Kind::kReceive;
}

TimelineItem itemOf(const LoadedModule &stage, const qlora_command &command) {
  TimelineItem item;
  item.kind = kindOf(stage, command);
  item.queue = command.queue;
  if (command.kind != QLORA_COMMAND_COLLECTIVE) {
    item.event = command.target;
    return item;
  }
  item.peer = command.peer;
  item.bytes = collectiveBytes(stage, command);
  return item;
}

/// Returns the commands that the order of transfers depends on, as items.
static std::vector<TimelineItem> itemsOf(const LoadedModule &stage,
                                         const qlora_entry &entry) {
  std::vector<TimelineItem> items;
  for (const qlora_command &command : stage.commands(entry))
    if (command.kind == QLORA_COMMAND_COLLECTIVE ||
        command.kind == QLORA_COMMAND_RECORD ||
        command.kind == QLORA_COMMAND_WAIT)
      items.push_back(itemOf(stage, command));
  return items;
}

Status checkTransfers(const LoadedModule &module) {
  for (size_t place = 0; place < module.entries().size(); ++place) {
    std::vector<std::vector<TimelineItem>> items;
    for (int number = 0; number < module.stages(); ++number) {
      const LoadedModule stage = module.ofStage(number);
      items.push_back(itemsOf(stage, stage.entries()[place]));
    }
    if (Status status = simulateStages(items).status(); !status.isOk())
      return status.withContext(
          fmt::format("'{}': {}", module.path(),
                      entryKindName(module.entries()[place].kind)));
  }
  return Status::ok();
}

} // namespace qlora
