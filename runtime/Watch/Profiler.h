// SPDX-License-Identifier: MIT

// `--profile trace.json`: what every rank does in a few steps, command by
// command. All ranks have a Profiler; rank 0 writes the one file, with a
// process for each rank and these tracks:
//
//   host            HostWork, nested in its steps
//   compute, communication, copy
//                   the commands of the queues, by their label; args: kernel,
//                   entry, number in the entry, bytes, flops, GB/s, GFLOP/s,
//                   and the share of the bound by the device's rates
//
// and prints ProfileTable of its own rank, which is the file's otherData too.
//
// Profiling begins and ends where no step is in flight. Outside of it a step
// costs what it costs without a profile. Inside, a CPU reads its clock twice a
// command; a GPU runs without graphs, with two events a command, which makes
// steps of small kernels slower (Cuda/CudaTimer.h).

#ifndef QLORA_RUNTIME_WATCH_PROFILER_H
#define QLORA_RUNTIME_WATCH_PROFILER_H

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/Kernels/DeviceProfile.h"
#include "runtime/Device/Device.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Watch/Metrics.h"
#include "runtime/Watch/ProfileTable.h"
#include "runtime/Watch/TraceFile.h"

namespace qlora {

class CommandFactsTable;
class ProfileTable;

/// The command line's. warmup and active are torch.profiler.schedule's.
struct ProfileRequest {
  std::string path;   ///< of the trace; empty: no profile
  int64_t warmup = 0; ///< steps before it
  int64_t active = 1; ///< steps that it holds
  std::string rates;  ///< a card or device.json; empty: the target's default
};

/// What is profiled; all of it outlives the profiler.
struct ProfiledRun {
  const LoadedModule &module;
  Device &device;
  RankGroup &group;
  Metrics *metrics; ///< null on ranks other than 0
};

/// Used by the session's thread.
class Profiler {
public:
  /// Refuses what cannot be written, and a run of too few steps.
  static StatusOr<std::unique_ptr<Profiler>> open(const ProfileRequest &request,
                                                  const ProfiledRun &run,
                                                  int64_t totalSteps);

  /// Whether profiling begins or ends after so many steps.
  bool isEdge(int64_t done) const {
    return done == request.warmup || done == request.warmup + request.active;
  }
  /// To be called when no step is in flight and `done` are behind; all ranks
  /// at the same steps. `isEnd`: none follows.
  Status startAfter(int64_t done);
  Status finishAfter(int64_t done, bool isEnd);

  bool isActive() const { return active; }
  void add(HostWork work, int64_t start, int64_t end);

private:
  Profiler(const ProfileRequest &request, const ProfiledRun &run,
           DeviceProfile rates)
      : request(request), run(run), rates(std::move(rates)) {}
  Status take();
  Status write();
  void writeRank(int rank, const RankProfile &profile, ProfileTable *table,
                 CommandFactsTable &facts);

  const ProfileRequest request;
  const ProfiledRun run;
  const DeviceProfile rates;
  std::unique_ptr<TraceFile> trace; ///< on rank 0
  bool active = false;
  int64_t began = 0; ///< steady nanoseconds
  int64_t step = 0;  ///< that runs, from 1
  RankProfile own;
};

/// A slice of the host's track, while it lives. `profiler` may be null.
class HostSlice {
public:
  HostSlice(Profiler *profiler, HostWork work)
      : profiler(profiler && profiler->isActive() ? profiler : nullptr),
        work(work), start(this->profiler ? steadyNanoseconds() : 0) {}
  ~HostSlice() {
    if (profiler)
      profiler->add(work, start, steadyNanoseconds());
  }
  HostSlice(const HostSlice &) = delete;

private:
  Profiler *profiler;
  HostWork work;
  int64_t start;
};

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_PROFILER_H
