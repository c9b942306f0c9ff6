// SPDX-License-Identifier: MIT

// Names commands and bounds their times.

#include "runtime/Predict/CommandMetadata.h"

#include <algorithm>

#include "runtime/Module/CommandWork.h"
#include "runtime/Predict/CollectiveCost.h"

namespace qlora {

/// Describes a launch. If it runs several kernels, describes the longest one.
void CommandMetadataTable::describeLaunch(const qlora_command &command,
                                          bool isUpdate, Entry &entry) const {
  CommandMetadata &facts = entry.facts;
  StepPart part = StepPart::kRows;
  double longest = -1;
  const KernelRow *row = nullptr;
  if (command.kind == QLORA_COMMAND_LAUNCH) {
    facts.kernel =
        device
            ? device->kernelName(command.target)
            : module.kernels()[module.launches()[command.target].kernel].name;
    row = findKernelRow(facts.kernel);
  }
  for (const CommandKernel &kernel :
       kernelsOf(module, command, isUpdate, rates, row)) {
    facts.bytes += kernel.work.bytes;
    facts.boundSeconds += kernel.demand.seconds();
    if (kernel.demand.busy() > longest) {
      longest = kernel.demand.busy();
      part = kernel.part;
    }
  }
  facts.kind = stepPartName(part);
  entry.isOfLabels = part == StepPart::kHead;
  if (command.kind != QLORA_COMMAND_LAUNCH) {
    facts.kind = "copy and fill";
    return;
  }
  facts.name = module.launches()[command.target].label;
  facts.flops = flopsOf(module, command);
}

CommandMetadataTable::Entry
CommandMetadataTable::find(const qlora_command &command, bool isUpdate) const {
  Entry entry;
  CommandMetadata &facts = entry.facts;
  facts.name = commandName(command);
  facts.queue = command.queue;
  switch (command.kind) {
  case QLORA_COMMAND_COLLECTIVE:
    facts.kind = "collective";
    // A group of one sends nothing.
    if (const GroupSizes groups = module.groups().on(ranks);
        groups[command.group] > 1) {
      facts.bytes = double(collectiveBytes(module, command));
      facts.boundSeconds = collectiveDemand(command.collective, facts.bytes,
                                            groups[command.group],
                                            groups.stride(command.group), rates)
                               .seconds();
    }
    break;
  case QLORA_COMMAND_RECORD:
  case QLORA_COMMAND_WAIT:
    facts.kind = "wait";
    break;
  default:
    describeLaunch(command, isUpdate, entry);
  }
  return entry;
}

CommandMetadata CommandMetadataTable::of(const TimedCommand &timed) {
  const qlora_entry &entry = module.entries()[timed.entry];
  auto found = known.find(timed.command);
  if (found == known.end())
    found = known
                .emplace(timed.command, find(module.commands()[timed.command],
                                             entry.kind == QLORA_ENTRY_UPDATE))
                .first;
  CommandMetadata facts = found->second.facts;
  if (!found->second.isOfLabels)
    return facts;
  const double share = double(timed.labelledRows) /
                       double(std::max<int64_t>(1, module.tokensOf(entry)));
  facts.flops *= share;
  facts.bytes *= share;
  facts.boundSeconds *= share;
  return facts;
}

} // namespace qlora
