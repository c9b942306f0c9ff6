// SPDX-License-Identifier: MIT

// Times of commands on a GPU: an event on the command's stream before it and
// one after it. So a command's time is that of all its kernels, with the gaps
// that the host leaves between them; small kernels take longer than they do in
// a graph.
//
// Kernels of two streams share the GPU's multiprocessors, and one that has to
// wait for them has begun by the clock of events: a decode beside a GEMM would
// seem to take as long as the GEMM. So kernels run one at a time while they are
// timed, in the order of their commands: each starts after the previous one of
// another stream has ended, and its first event is recorded then. Collectives
// and copies overlap with them as they do without a timer.
//
// The events of an entry are read when the entry after the next begins, so that
// the card has work while they are read.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDATIMER_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDATIMER_H

#include <array>
#include <memory>

#include "runtime/Device/CommandTimer.h"
#include "runtime/Device/Cuda/CudaQueues.h"

namespace qlora {

class CudaTimer final : public CommandTimer {
public:
  /// Waits for the card, once, to set its clock by the host's. Both outlive
  /// the timer.
  static StatusOr<std::unique_ptr<CommandTimer>> create(const CudaDriver &,
                                                        CudaQueues &queues);

  Status begin(const LoadedModule &module, const qlora_entry &entry,
               uint64_t labelledRows) override;
  Status before(const qlora_command &command) override;
  Status after(const qlora_command &command) override;
  Status end() override;
  StatusOr<std::vector<TimedCommand>> finish() override;

private:
  /// An entry that the card may still be working on.
  struct Run {
    std::vector<TimedCommand> commands; ///< without times
    CudaEvent origin, done;             ///< on the compute stream
    std::vector<CudaEvent> events;      ///< two a command, kept for reuse
    size_t next = 0;                    ///< of `events`
    /// The event after the last kernel, and its queue; null: there is none.
    const CudaEvent *lastKernel = nullptr;
    uint8_t queueOfLast = 0;
    bool isOpen = false;                ///< its events are to be read
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
  size_t current = 0;        ///< of `runs`
  CudaEvent lastOrigin;      ///< of the last run that was read
  double lastOriginTime = 0; ///< nanoseconds of the host's clock
  std::vector<TimedCommand> timed;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDATIMER_H
