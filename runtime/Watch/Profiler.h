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
// command; a GPU runs without graphs, with two events a command, and kernels one
// at a time on all streams, which makes steps slower (Cuda/CudaTimer.h).

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
#include "runtime/Predict/CommandFacts.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Watch/Metrics.h"

namespace qlora {

//===----------------------------------------------------------------------===//
// What is recorded: commands and the host's work, in nanoseconds since the
// profile began, which all ranks begin together, so that their times are one
// timeline.
//===----------------------------------------------------------------------===//

/// What the host thread of a rank does. kStep holds all that follow it here.
/// On a CPU the commands of the compute queue run inside kAccumulate and
/// kUpdate; for a GPU these only put them on its queues.
enum class HostWork {
  kStep,
  kData, ///< reading examples and building a micro-batch
  kAccumulate,
  kAgree, ///< sums of tokens and labels over ranks
  kUpdate,
  kResults, ///< waiting for losses
  kLog,
  kCount
};
std::string_view hostWorkName(HostWork work);

struct HostSpan {
  HostWork work = HostWork::kStep;
  int64_t step = 0; ///< from 1
  int64_t start = 0, end = 0;
};

struct RankProfile {
  std::vector<TimedCommand> commands;
  std::vector<HostSpan> host;
};

//===----------------------------------------------------------------------===//
// Its short end: where the time of a step goes, by queue and kind of command,
// on one rank.
//===----------------------------------------------------------------------===//

/// Sums over all profiled steps.
struct ProfileRow {
  std::string queue; ///< queueName, or "host"
  std::string kind;  ///< CommandFacts::kind, hostWorkName
  int64_t count = 0;
  double seconds = 0;
  double flops = 0, bytes = 0;
  double boundSeconds = 0; ///< 0: not known
};

/// What the profile's rates are worth: a run may well be several times as fast
/// as assumed ones.
enum class RatesOrigin {
  kNobodys, ///< the target's default: times are compared with nothing
  kAssumed, ///< of a card, or of another machine
  kMeasured ///< by --calibrate on this machine, with as many threads
};

/// `given`: as --device-profile has it.
RatesOrigin originOf(const DeviceProfile &rates, std::string_view given);

/// Share: of the steps' wall time. The compute queue's shares and `idle` (it
/// runs nothing) add up to 100 %; those of other queues and of the host lie
/// beside them. Commands of an evaluation between steps count nowhere.
class ProfileTable {
public:
  /// Counts a command of a step, or a slice of the host.
  void add(const CommandFacts &facts, double seconds);
  void add(const HostSpan &span);

  int64_t steps() const { return stepCount; }
  double secondsPerStep() const;
  /// Of the compute queue, over all steps.
  double idleSeconds() const;

  /// {"steps", "step_seconds", "rates", "rates_measured", "rows": [{"queue",
  /// "kind", "count", "seconds", "share", "gflops", "gbps",
  /// "share_of_bound"}]}: counts and seconds of one step; what is not known is
  /// left out.
  nlohmann::ordered_json toJson(const DeviceProfile &rates,
                                RatesOrigin origin) const;
  std::string text(const DeviceProfile &rates, RatesOrigin origin) const;

private:
  ProfileRow &row(std::string_view queue, std::string_view kind);
  /// The compute queue's first, then longest first.
  std::vector<ProfileRow> sorted() const;
  std::string line(const ProfileRow &row, RatesOrigin origin) const;

  std::vector<ProfileRow> rows;
  int64_t stepCount = 0;
  double stepSeconds = 0; ///< of all
};

//===----------------------------------------------------------------------===//
// Its long one: a timeline in Chrome's trace event format, for ui.perfetto.dev
// and chrome://tracing.
//
//   {"displayTimeUnit": "ms", "traceEvents": [
//     {"ph": "M", "name": "thread_name", "pid": 0, "tid": 1, "args": {...}},
//     {"ph": "X", "name": "...", "cat": "...", "pid": 0, "tid": 1,
//      "ts": 12.5, "dur": 3.25, "args": {...}}],
//    "otherData": {...}}
//
// Times are in microseconds. Slices of a track follow or contain each other.
//===----------------------------------------------------------------------===//

struct TraceSlice {
  int process = 0, track = 0;
  std::string_view name, category;
  int64_t start = 0, end = 0; ///< nanoseconds
  nlohmann::ordered_json args = nlohmann::ordered_json::object();
};

class TraceFile {
public:
  /// Until commit() a file of an earlier run stays. An error says why `path`
  /// cannot be written.
  static StatusOr<std::unique_ptr<TraceFile>> open(const std::string &path);
  /// Names, in the order of the numbers; before the slices or after them.
  void nameProcess(int process, std::string_view name);
  void nameTrack(int process, int track, std::string_view name);
  void add(const TraceSlice &slice);
  /// Ends the file and puts it at its place. An error of any write before is
  /// reported here.
  Status commit(const nlohmann::ordered_json &otherData);

private:
  explicit TraceFile(AtomicFile file) : file(std::move(file)) {}
  void addEvent(const nlohmann::ordered_json &event);
  void write(std::string_view text);
  void writePending();

  AtomicFile file;
  std::string pending; ///< not yet written
  Status status;
  bool isFirst = true;
};

//===----------------------------------------------------------------------===//
// Who records
//===----------------------------------------------------------------------===//

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
                 const LoadedModule &module, CommandFactsTable &facts);

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
