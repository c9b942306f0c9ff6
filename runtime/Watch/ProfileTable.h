// SPDX-License-Identifier: MIT

// What a rank's profile is made of: the commands that its device ran and the
// work of its host thread, in nanoseconds since the profile began, which all
// ranks begin together, so that their times are one timeline. And its short
// end: where the time of a step goes, by queue and kind of command, on one rank.
//
// Share: of the steps' wall time. The compute queue's shares and `idle` (it
// runs nothing) add up to 100 %; those of other queues and of the host lie
// beside them. Commands of an evaluation between steps count nowhere.

#ifndef QLORA_RUNTIME_WATCH_PROFILETABLE_H
#define QLORA_RUNTIME_WATCH_PROFILETABLE_H

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/Base/Status.h"
#include "runtime/Device/CommandTimer.h"
#include "runtime/Predict/CommandFacts.h"
#include "runtime/Ranks/RankGroup.h"

namespace qlora {

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

/// The profile of `rank`, where `own` is this rank's. All ranks call it.
StatusOr<RankProfile> shareProfile(RankGroup &group, int rank,
                                   const RankProfile &own);

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

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_PROFILETABLE_H
