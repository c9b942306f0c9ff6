// SPDX-License-Identifier: MIT

// `--profile trace.json`: times every command of every rank for a few steps.
// All ranks have a Profiler. Rank 0 writes one file, with tracks for each rank:
//
//   host            spans of HostWork, nested in steps
//   compute, communication, copy
//                   the commands of the queues, by their label; args: kernel,
//                   entry, index in the entry, bytes, flops, GB/s, GFLOP/s,
//                   and the fraction of the device's roofline
//
// It also prints rank 0's ProfileTable and adds it to the trace as otherData.
//
// Profiling begins and ends when no step is in flight. Steps outside the
// profile cost nothing extra. In profiled steps, a CPU reads its clock twice
// per command. A GPU runs without graphs, with two events per command, and one
// kernel at a time on all streams, which makes steps slower (Cuda/CudaTimer.h).

#ifndef QLORA_RUNTIME_WATCH_PROFILER_H
#define QLORA_RUNTIME_WATCH_PROFILER_H

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/Base/AtomicFile.h"
#include "runtime/Base/Status.h"
#include "runtime/Device/CommandTimer.h"
#include "runtime/Device/Device.h"
#include "runtime/Kernels/DeviceProfile.h"
#include "runtime/Predict/CommandMetadata.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Watch/Metrics.h"

namespace qlora {

//===----------------------------------------------------------------------===//
// Recorded data: commands and host work, in nanoseconds since the profile
// began. All ranks begin it together, so their times form one timeline.
//===----------------------------------------------------------------------===//

/// Work of a rank's host thread. kStep contains all other work. On a CPU the
/// commands of the compute queue run inside kAccumulate and kUpdate. On a GPU,
/// kAccumulate and kUpdate only enqueue commands.
enum class HostWork {
  kStep,
  kData, ///< reads examples and builds a micro-batch
  kAccumulate,
  kAgree, ///< reduces the counts of tokens and labels over ranks
  kUpdate,
  kResults, ///< waits for losses
  kLog,
  kCount
};
std::string_view hostWorkName(HostWork work);

struct HostSpan {
  HostWork work = HostWork::kStep;
  int64_t step = 0; ///< number of the step, from 1
  int64_t start = 0, end = 0;
};

struct RankProfile {
  std::vector<TimedCommand> commands;
  std::vector<HostSpan> host;
};

//===----------------------------------------------------------------------===//
// The table: time of a step on one rank, per queue and kind of command.
//===----------------------------------------------------------------------===//

/// Sums over all profiled steps.
struct ProfileRow {
  std::string queue; ///< name of the queue, or "host"
  std::string kind;  ///< CommandMetadata::kind or hostWorkName()
  int64_t count = 0;
  double seconds = 0;
  double flops = 0, bytes = 0;
  double boundSeconds = 0; ///< time at the device's rates; 0: not known
};

/// Origin of the device's rates with which the table compares a run.
enum class RatesOrigin {
  kTargetDefault, ///< the target's default: not comparable
  /// Rates of a known GPU, or from another machine. A run may be much faster.
  kAssumed,
  kMeasured ///< rates of --calibrate on this machine and number of threads
};

/// Returns the origin of `rates`, given the value of --device-profile.
RatesOrigin originOf(const DeviceProfile &rates, std::string_view given);

/// Sums times per queue and kind. `share` is the fraction of the steps' wall
/// time. On the compute queue all shares and `idle` (no command runs) add up to
/// 100 %. Other queues and the host overlap with the compute queue. Commands of
/// an evaluation between steps are not counted.
class ProfileTable {
public:
  /// Counts a command of a step, or a span of host work.
  void add(const CommandMetadata &facts, double seconds);
  void add(const HostSpan &span);

  int64_t steps() const { return stepCount; }
  double secondsPerStep() const;
  /// Returns the idle time of the compute queue over all steps.
  double idleSeconds() const;

  /// Returns {"steps", "step_seconds", "rates", "rates_measured", "rows":
  /// [{"queue", "kind", "count", "seconds", "share", "gflops", "gbps",
  /// "share_of_bound"}]}. Counts and seconds are per step; unknown values are
  /// left out.
  nlohmann::ordered_json toJson(const DeviceProfile &rates,
                                RatesOrigin origin) const;
  std::string text(const DeviceProfile &rates, RatesOrigin origin) const;

private:
  ProfileRow &row(std::string_view queue, std::string_view kind);
  /// Returns the compute queue's rows, then others, by descending time.
  std::vector<ProfileRow> sorted() const;
  std::string line(const ProfileRow &row, RatesOrigin origin) const;

  std::vector<ProfileRow> rows;
  int64_t stepCount = 0;
  double stepSeconds = 0; ///< seconds of all profiled steps
};

//===----------------------------------------------------------------------===//
// The timeline, in Chrome's trace event format, for ui.perfetto.dev and
// chrome://tracing.
//
//   {"displayTimeUnit": "ms", "traceEvents": [
//     {"ph": "M", "name": "thread_name", "pid": 0, "tid": 1, "args": {...}},
//     {"ph": "X", "name": "...", "cat": "...", "pid": 0, "tid": 1,
//      "ts": 12.5, "dur": 3.25, "args": {...}}],
//    "otherData": {...}}
//
// Times are in microseconds. Events of a track follow or contain each other.
//===----------------------------------------------------------------------===//

struct TraceSlice {
  int process = 0, track = 0;
  std::string_view name, category;
  int64_t start = 0, end = 0; ///< nanoseconds since the profile began
  nlohmann::ordered_json args = nlohmann::ordered_json::object();
};

class TraceFile {
public:
  /// Opens a trace file. An earlier file at `path` stays until commit(). Fails
  /// with the reason if `path` cannot be written.
  static StatusOr<std::unique_ptr<TraceFile>> open(const std::string &path);
  /// Name a process or a track by number, before or after its events.
  void nameProcess(int process, std::string_view name);
  void nameTrack(int process, int track, std::string_view name);
  void add(const TraceSlice &slice);
  /// Completes the file and moves it to its path. Returns the first error.
  Status commit(const nlohmann::ordered_json &otherData);

private:
  explicit TraceFile(AtomicFile file) : file(std::move(file)) {}
  void addEvent(const nlohmann::ordered_json &event);
  void write(std::string_view text);
  void writePending();

  AtomicFile file;
  std::string pending; ///< bytes that are not written yet
  Status status;
  bool isFirst = true;
};

//===----------------------------------------------------------------------===//
// The recorder
//===----------------------------------------------------------------------===//

/// Options of a profile. `warmup` and `active`: as in torch.profiler.schedule.
struct ProfileRequest {
  std::string path;   ///< trace file; empty: no profile
  int64_t warmup = 0; ///< steps before the profile
  int64_t active = 1; ///< profiled steps
  std::string rates;  ///< a GPU or device.json; empty: the target's default
};

/// The run to profile; all of it must outlive the profiler.
struct ProfiledRun {
  const LoadedModule &module;
  Device &device;
  RankGroup &group;
  Metrics *metrics; ///< null on ranks other than 0
};

/// Used on the session's thread only.
class Profiler {
public:
  /// Refuses a path that cannot be written, and a run of too few steps.
  static StatusOr<std::unique_ptr<Profiler>> open(const ProfileRequest &request,
                                                  const ProfiledRun &run,
                                                  int64_t totalSteps);

  /// Returns whether profiling begins or ends after `done` steps.
  bool isEdge(int64_t done) const {
    return done == request.warmup || done == request.warmup + request.active;
  }
  /// Begin and end profiling, if due after `done` complete steps. All ranks
  /// call them together, with no step in flight. `isEnd`: no step follows.
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
                 const LoadedModule &module, CommandMetadataTable &facts);

  const ProfileRequest request;
  const ProfiledRun run;
  const DeviceProfile rates;
  std::unique_ptr<TraceFile> trace; ///< null except on rank 0
  bool active = false;
  int64_t began = 0; ///< nanoseconds of the steady clock
  int64_t step = 0;  ///< current step, from 1
  RankProfile own;
};

/// Records host work during its lifetime. `profiler` may be null.
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
