// SPDX-License-Identifier: MIT

// Prices the tables of a planned program.

#include "compiler/Report/PlanTimes.h"

using namespace mlir;
using namespace qlora;

FailureOr<PlanTimes> PlanTimes::create(ModuleOp program,
                                       const DeviceProfile &device,
                                       int64_t ranks) {
  FailureOr<ModuleTables> tables =
      ModuleTables::of(program, device.gpu ? cudaSpelling() : hostSpelling());
  if (failed(tables))
    return failure();
  return PlanTimes(std::move(*tables), device, ranks);
}

Timeline PlanTimes::of(size_t entry, QueueSharing sharing,
                       std::vector<TimelineSpan> *spans) const {
  const LoadedModule module = LoadedModule::ofTables(tables.header);
  return timeEntry(module, tables.entries[entry],
                   PriceList(module, device, ranks), sharing, spans);
}

Timeline PlanTimes::atLowRates(size_t entry) const {
  const LoadedModule module = LoadedModule::ofTables(tables.header);
  const DeviceProfile low = lowRates(device);
  return timeEntry(module, tables.entries[entry], PriceList(module, low, ranks),
                   QueueSharing::kTakeTurns);
}

/// Times the entry of `kind` with the most tokens; no time if there is none.
Timeline PlanTimes::ofLargest(qlora_entry_kind kind) const {
  const qlora_entry *largest = nullptr;
  for (const qlora_entry &entry : tables.entries)
    if (entry.kind == kind &&
        (!largest ||
         entry.batch * entry.length > largest->batch * largest->length))
      largest = &entry;
  return largest ? of(largest - tables.entries.data()) : Timeline();
}

StepSeconds PlanTimes::ofStep(int64_t microBatches) const {
  StepSeconds step;
  const auto add = [&](qlora_entry_kind kind, int64_t times) {
    if (times == 0)
      return;
    const Timeline timeline = ofLargest(kind);
    step.all += double(times) * timeline.seconds;
    step.exposedCommunication += double(times) * timeline.exposedCommunication;
  };
  add(QLORA_ENTRY_ACCUMULATE, microBatches - 1);
  add(QLORA_ENTRY_ACCUMULATE_LAST, 1);
  add(QLORA_ENTRY_UPDATE, 1);
  return step;
}

double PlanTimes::ofLastMicroBatch() const {
  return ofLargest(QLORA_ENTRY_ACCUMULATE_LAST).seconds;
}
