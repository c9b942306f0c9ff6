// SPDX-License-Identifier: MIT

// When the commands of an entry would run on a described device: the cost
// model's seconds of each, on the clock of Timeline.h. The same as the
// prediction of the runtime (StepPrediction.h) for the module that is made of
// the entry, for one rank, whose collectives take no time.

#ifndef QLORA_COMPILER_REPORT_COMMANDTIMES_H
#define QLORA_COMPILER_REPORT_COMMANDTIMES_H

#include "compiler/Codegen/RowOperands.h"

#include "runtime/Predict/Timeline.h"

namespace qlora {

/// Keeps references to both it is made of.
class CommandTimes {
public:
  /// `program` has its kernels selected. Errors are those of rowOperands.
  static mlir::FailureOr<CommandTimes> create(mlir::ModuleOp program,
                                              const DeviceProfile &device);

  /// Until the last command of an entry has ended.
  double secondsOf(program::EntryOp entry, QueueSharing sharing) const;

  /// One span for each of commandsOf(entry), in seconds from the entry's
  /// start. A command that is several kernels spans all of them; an event has
  /// no length.
  std::vector<TimelineSpan>
  of(program::EntryOp entry,
     QueueSharing sharing = QueueSharing::kSideBySide) const;

private:
  explicit CommandTimes(const DeviceProfile &device) : device(&device) {}
  std::vector<Work> worksOf(mlir::Operation *command) const;
  std::vector<Work> worksOf(program::LaunchOp launch) const;

  const DeviceProfile *device;
  llvm::StringMap<program::KernelOp> kernels;
  /// Operands of the generated ones.
  llvm::DenseMap<mlir::Operation *, llvm::SmallVector<RowOperand>> rows;
};

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_COMMANDTIMES_H
