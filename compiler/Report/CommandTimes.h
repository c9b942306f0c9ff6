// SPDX-License-Identifier: MIT

// When the commands of an entry would run on a described device: the cost
// model's seconds of each, on the clock of Timeline.h. The same as the
// prediction of the runtime (StepPrediction.h) for the module that is made of
// the program. Collectives of one rank take no time.

#ifndef QLORA_COMPILER_REPORT_COMMANDTIMES_H
#define QLORA_COMPILER_REPORT_COMMANDTIMES_H

#include "compiler/Codegen/RowOperands.h"

#include "runtime/Predict/Timeline.h"

namespace qlora {

/// What an optimizer step of a rank takes.
struct StepSeconds {
  double all = 0;
  double exposedCommunication = 0; ///< of `all`
};

/// Keeps references to both it is made of.
class CommandTimes {
public:
  /// `program` has its kernels selected. Errors are those of rowOperands.
  static mlir::FailureOr<CommandTimes> create(mlir::ModuleOp program,
                                              const DeviceProfile &device,
                                              int64_t ranks = 1);

  /// Until the last command of an entry has ended.
  double secondsOf(program::EntryOp entry, QueueSharing sharing) const;

  /// So many of the program's largest micro-batches and their update, one after
  /// another.
  StepSeconds ofStep(int64_t microBatches) const;

  /// One span for each of commandsOf(entry), in seconds from the entry's
  /// start. A command that is several kernels spans all of them; an event has
  /// no length.
  std::vector<TimelineSpan>
  of(program::EntryOp entry,
     QueueSharing sharing = QueueSharing::kSideBySide) const;

private:
  CommandTimes(mlir::ModuleOp program, const DeviceProfile &device,
               int64_t ranks)
      : program(program), device(&device), ranks(ranks) {}
  Timeline timelineOf(program::EntryOp entry, QueueSharing sharing,
                      std::vector<TimelineSpan> *spans = nullptr) const;
  /// A command that is no launch or fill, nor a copy within the device.
  TimelineItem itemOf(mlir::Operation *command) const;
  Demand demandOfCollective(program::CollectiveOp collective) const;
  /// As runtime/Module/CommandWork.h has it.
  double bytesOverBus(mlir::Operation *command) const;
  std::vector<Work> worksOf(mlir::Operation *command) const;
  std::vector<Work> worksOf(program::LaunchOp launch) const;

  mlir::ModuleOp program;
  const DeviceProfile *device;
  int64_t ranks;
  llvm::DenseSet<unsigned> onHost; ///< kinds of arenas
  llvm::StringMap<program::KernelOp> kernels;
  /// Operands of the generated ones.
  llvm::DenseMap<mlir::Operation *, llvm::SmallVector<RowOperand>> rows;
};

/// Of the entries of a kind the one with most tokens; null where there is none.
program::EntryOp largestMicroBatch(mlir::ModuleOp program,
                                   program::EntryKind kind);

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_COMMANDTIMES_H
