// SPDX-License-Identifier: MIT

// Predicts when a planned program's commands run on a described device, with
// the runtime's prices (CommandPrice.h). Collectives of one rank take no time.

#ifndef QLORA_COMPILER_REPORT_PLANTIMES_H
#define QLORA_COMPILER_REPORT_PLANTIMES_H

#include "compiler/Codegen/ModuleTables.h"

#include "runtime/Predict/CommandPrice.h"

namespace qlora {

/// Seconds of an optimizer step on one rank.
struct StepSeconds {
  double all = 0;
  double exposedCommunication = 0; ///< part of `all` that waits for collectives
};

class PlanTimes {
public:
  /// `program` must have its kernels selected and its memory planned. Fails
  /// only if ModuleTables::of() does.
  static mlir::FailureOr<PlanTimes> create(mlir::ModuleOp program,
                                           const DeviceProfile &device,
                                           int64_t ranks = 1);

  /// Times one run of the program's entry number `entry`. `spans` is null or
  /// receives one span per command, in seconds from the entry's start.
  Timeline of(size_t entry, QueueSharing sharing = QueueSharing::kSideBySide,
              std::vector<TimelineSpan> *spans = nullptr) const;
  /// Times one run at the device's low rates (DeviceProfile.h), at which
  /// kernels take turns.
  Timeline atLowRates(size_t entry) const;
  /// Times a step: `microBatches` runs of the program's largest micro-batch,
  /// then the update.
  StepSeconds ofStep(int64_t microBatches) const;
  /// Returns the seconds of the largest micro-batch, the last of a step.
  double ofLastMicroBatch() const;

private:
  PlanTimes(ModuleTables tables, const DeviceProfile &device, int64_t ranks)
      : tables(std::move(tables)), device(device), ranks(ranks) {}
  Timeline ofLargest(qlora_entry_kind kind) const;

  ModuleTables tables;
  DeviceProfile device;
  int64_t ranks;
};

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_PLANTIMES_H
