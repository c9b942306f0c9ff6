// SPDX-License-Identifier: MIT

// Counting a program.

#include "runtime/Session/NullRun.h"

#include "runtime/Core/Executor.h"
#include "runtime/Device/Device.h"
#include "runtime/Session/MemoryPlan.h"
#include "runtime/Session/Program.h"
#include "runtime/Session/ReportText.h"

namespace qlora {

static DeviceCounters operator-(const DeviceCounters &a,
                                const DeviceCounters &b) {
  return {a.launches - b.launches,
          a.fills - b.fills,
          a.copies - b.copies,
          a.collectives - b.collectives,
          a.records - b.records,
          a.waits - b.waits,
          a.bytesRead - b.bytesRead,
          a.bytesWritten - b.bytesWritten,
          a.collectiveBytes - b.collectiveBytes};
}

static std::string countersText(const std::string &name,
                                const DeviceCounters &c) {
  return fmt::format("  {:<28} {:>8} {:>6} {:>7} {:>11} {:>10} {:>10} {:>10}"
                     "\n",
                     name, c.launches, c.fills, c.copies, c.collectives,
                     formatBytes(c.collectiveBytes), formatBytes(c.bytesRead),
                     formatBytes(c.bytesWritten));
}

static StatusOr<DeviceCounters> countEntry(Device &device,
                                           const LoadedModule &module,
                                           const qlora_entry &entry) {
  DeviceCounters before = device.counters();
  QLORA_RETURN_IF_ERROR(runEntry(device, module, entry, {}));
  return device.counters() - before;
}

StatusOr<std::string> checkOnNullDevice(const LoadedModule &module,
                                        const Options &options, int ranks) {
  QLORA_RETURN_IF_ERROR(CompiledVariants::of(module).status());
  DeviceOptions deviceOptions;
  deviceOptions.ranks = ranks;
  QLORA_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                         createDevice("null", deviceOptions));
  QLORA_RETURN_IF_ERROR(device->load(module, nullptr));
  std::string text = planText(module, *device, ranks) + "\n";
  text += fmt::format("  {:<28} {:>8} {:>6} {:>7} {:>11} {:>10} {:>10} {:>10}"
                      "\n",
                      "entry", "launches", "fills", "copies", "collectives",
                      "sent", "read", "written");
  uint64_t collectives = 0;
  for (const qlora_entry &entry : module.entries()) {
    QLORA_ASSIGN_OR_RETURN(DeviceCounters counters,
                           countEntry(*device, module, entry));
    std::string name(entryKindName(entry.kind));
    if (entry.batch > 0)
      name += fmt::format(" {} x {}", entry.batch, entry.length);
    text += countersText(name, counters);
    if (entry.kind == QLORA_ENTRY_ACCUMULATE_LAST)
      collectives = std::max(collectives, counters.collectives);
  }
  int64_t accumulation = options.integer("gradient_accumulation_steps");
  text += fmt::format("\na step of {} ranks: {} micro-batches, {} collectives "
                      "on each rank; every command and address is inside its "
                      "arena\n",
                      ranks, accumulation * ranks, collectives);
  return text;
}

} // namespace qlora
