// SPDX-License-Identifier: MIT

// Times commands on a GPU with an event before and after each command on its
// stream. The time covers all kernels of the command and the gaps that the host
// leaves between them. Small kernels take longer than they do in a graph.
//
// Kernels of two streams share the GPU's multiprocessors. The first event of a
// kernel is recorded before the kernel gets free multiprocessors: a decode
// during a GEMM would seem to take as long as the GEMM. So timed kernels run
// one at a time, in the order of their commands: the first event of a kernel is
// recorded after the previous kernel of another stream has ended. Collectives
// and copies overlap with kernels as they do without a timer.
//
// The events of an entry are read two entries later, so that the GPU has work
// during the read.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDATIMER_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDATIMER_H

#include <array>
#include <memory>

#include "runtime/Device/CommandTimer.h"
#include "runtime/Device/Cuda/CudaQueues.h"

namespace qlora {

class CudaTimer final : public CommandTimer {
public:
  /// Waits for the GPU once, to relate its clock to the host's. Both arguments
  /// outlive the timer.
  static StatusOr<std::unique_ptr<CommandTimer>> create(const CudaDriver &,
                                                        CudaQueues &queues);

  Status begin(const LoadedModule &module, const qlora_entry &entry,
               uint64_t labelledRows) override;
  Status before(const qlora_command &command) override;
  Status after(const qlora_command &command) override;
  Status end() override;
  StatusOr<std::vector<TimedCommand>> finish() override;

private:
  /// One entry, which may still be running.
  struct Run {
    std::vector<TimedCommand> commands; ///< times are not set yet
    CudaEvent origin, done;             ///< start and end of the entry
    std::vector<CudaEvent> events;      ///< two per command, reused later
    size_t next = 0;                    ///< index into `events`
    /// The event after the latest kernel, and its queue; null: no kernel yet.
    const CudaEvent *lastKernel = nullptr;
    uint8_t queueOfLast = 0;
    bool isOpen = false;                ///< the events are not read yet
  };

  CudaTimer(const CudaDriver &driver, CudaQueues &queues)
      : driver(driver), queues(queues) {}
  Status createEvents();
  StatusOr<CudaEvent> newTimedEvent() const;
  Status record(const CudaEvent &event, uint8_t queue) const;
  Status waitForLastKernel(const qlora_command &command);
  StatusOr<double> nanosecondsBetween(const CudaEvent &from,
                                      const CudaEvent &to) const;
  Status collect(Run &run);

  const CudaDriver &driver;
  CudaQueues &queues;
  const LoadedModule *module = nullptr;
  std::array<Run, 2> runs;
  size_t current = 0;        ///< index into `runs`
  CudaEvent lastOrigin;      ///< origin of the latest run that was read
  double lastOriginTime = 0; ///< nanoseconds of the host's clock
  std::vector<TimedCommand> timed;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDATIMER_H
