// SPDX-License-Identifier: MIT

// Prices commands, and simulates the entry that they form.

#include "runtime/Predict/CommandPrice.h"

#include "runtime/Predict/CollectiveCost.h"
#include "runtime/Predict/Transfers.h"

namespace qlora {

CommandPrice PriceList::of(const qlora_command &command, bool isUpdate,
                           const KernelRow *row) const {
  CommandPrice price;
  const double overBus = command.kind == QLORA_COMMAND_COPY && device.gpu
                             ? bytesOverBus(module, command)
                             : 0;
  if (overBus > 0) {
    price.items = {itemOf(module, command)};
    price.items[0].demand.serial = busSeconds(overBus, device);
    price.transfer = {"copy", "bus", overBus};
    return price;
  }
  price.kernels = kernelsOf(module, command, isUpdate, device, row);
  for (const CommandKernel &kernel : price.kernels) {
    TimelineItem item;
    item.queue = command.queue;
    item.demand = kernel.demand;
    price.items.push_back(item);
  }
  if (!price.items.empty())
    return price;
  price.items = {itemOf(module, command)}; // events have no work
  if (command.kind == QLORA_COMMAND_COLLECTIVE) {
    const auto bytes = double(collectiveBytes(module, command));
    price.items[0].demand =
        collectiveDemand(command.collective, bytes, groups[command.group],
                         groups.stride(command.group), device);
    price.transfer = {collectiveName(command.collective),
                      groupName(command.group), bytes};
  }
  return price;
}

Timeline timeEntry(const LoadedModule &module, const qlora_entry &entry,
                   const PriceList &prices, QueueSharing sharing,
                   std::vector<TimelineSpan> *spans) {
  std::vector<TimelineItem> items;
  std::vector<size_t> firstItem;
  for (const qlora_command &command : module.commands(entry)) {
    firstItem.push_back(items.size());
    const CommandPrice price =
        prices.of(command, entry.kind == QLORA_ENTRY_UPDATE);
    items.insert(items.end(), price.items.begin(), price.items.end());
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

} // namespace qlora
