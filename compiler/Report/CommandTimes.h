// SPDX-License-Identifier: MIT

// Predicts when an entry's commands run on a described device: the cost model
// gives the seconds of each command, and Timeline.h simulates the queues. The
// result equals the runtime's prediction for the compiled program
// (StepPrediction.h). Collectives of one rank take no time.

#ifndef QLORA_COMPILER_REPORT_COMMANDTIMES_H
#define QLORA_COMPILER_REPORT_COMMANDTIMES_H

#include "compiler/Codegen/RowOperands.h"

#include "runtime/Predict/Timeline.h"

namespace qlora {

/// Seconds of an optimizer step on one rank.
struct StepSeconds {
  double all = 0;
  double exposedCommunication = 0; ///< part of `all` that waits for collectives
};

class CommandTimes {
public:
  /// `program` must have its kernels selected. `device` must outlive the
  /// result. Fails only if rowOperands() does.
  static mlir::FailureOr<CommandTimes> create(mlir::ModuleOp program,
                                              const DeviceProfile &device,
                                              int64_t ranks = 1);

  /// Returns the seconds until the last command of an entry has ended.
  double secondsOf(program::EntryOp entry, QueueSharing sharing) const;

  /// Returns the time of a step: `microBatches` runs of the program's largest
  /// micro-batch, then the update.
  StepSeconds ofStep(int64_t microBatches) const;

  /// Returns one span per command of commandsOf(entry), in seconds from the
  /// entry's start. A command with several kernels spans all of them; an event
  /// has zero length.
  std::vector<TimelineSpan>
  of(program::EntryOp entry,
     QueueSharing sharing = QueueSharing::kSideBySide) const;

private:
  CommandTimes(mlir::ModuleOp program, const DeviceProfile &device,
               int64_t ranks)
      : program(program), device(&device), ranks(ranks) {}
  Timeline timelineOf(program::EntryOp entry, QueueSharing sharing,
                      std::vector<TimelineSpan> *spans = nullptr) const;
  /// Returns the item of a collective, event, or copy from or to the host.
  TimelineItem itemOf(mlir::Operation *command) const;
  Demand demandOfCollective(program::CollectiveOp collective) const;
  /// Bytes that a command of a GPU reads or writes in host memory, except in
  /// tables from which a kernel reads single rows.
  double bytesOverBus(mlir::Operation *command) const;
  std::vector<Work> worksOf(mlir::Operation *command) const;
  std::vector<Work> worksOf(program::LaunchOp launch) const;

  mlir::ModuleOp program;
  const DeviceProfile *device;
  int64_t ranks;
  llvm::DenseSet<unsigned> onHost; ///< arenas (program::Arena) in host memory
  llvm::StringMap<program::KernelOp> kernels;
  /// Operands of the generated kernels.
  llvm::DenseMap<mlir::Operation *, llvm::SmallVector<RowOperand>> rows;
};

/// Returns the entry of `kind` with the most tokens; null if there is none.
program::EntryOp largestMicroBatch(mlir::ModuleOp program,
                                   program::EntryKind kind);

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_COMMANDTIMES_H
