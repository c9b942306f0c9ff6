// SPDX-License-Identifier: MIT

// Young's interval, in steps.

#include "runtime/Predict/CheckpointInterval.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "runtime/Base/Amounts.h"

namespace qlora {

/// Assumed rates: a GPU over its bus, and a disk that several machines share.
static constexpr double kCopyGbps = 10, kWriteGbps = 1;

CheckpointInterval checkpointInterval(const LoadedModule &module,
                                      const StepPrediction &step,
                                      int64_t gpusPerNode,
                                      double machineHours) {
  CheckpointInterval found;
  found.machines = step.machines(gpusPerNode);
  found.machineHours = machineHours;
  found.failureSeconds = 3600 * machineHours / double(found.machines);
  // Checkpoints gather fsdp shards, so whole parameters count.
  for (const qlora_parameter &parameter : module.parameters())
    if (parameter.role != QLORA_ROLE_FROZEN)
      found.bytes += parameter.bytes;
  found.copySeconds = double(found.bytes) / (kCopyGbps * 1e9);
  found.writeSeconds = double(found.bytes) / (kWriteGbps * 1e9);
  const double best =
      std::max(std::sqrt(2 * found.copySeconds * found.failureSeconds),
               found.writeSeconds);
  found.steps = std::max<int64_t>(1, std::llround(best / step.seconds));
  found.seconds = double(found.steps) * step.seconds;
  const double lostByFailure = found.seconds / 2 + found.writeSeconds;
  found.lostShare = std::min(1.0, found.copySeconds / found.seconds +
                                      lostByFailure / found.failureSeconds);
  return found;
}

std::string CheckpointInterval::text() const {
  return fmt::format(
      "saving, predicted: a failure every {:.1f} hours on {} machines; a "
      "checkpoint of {} is\n  copied at {:.0f} GB/s, while the run waits, and "
      "written at {:.0f} (both assumed)\n  best: --save-steps {}, every {}, "
      "which loses {:.2f} % of the time, plus restarts\n",
      failureSeconds / 3600, machines, formatBytes(bytes), kCopyGbps,
      kWriteGbps, steps, formatDuration(seconds), 100 * lostShare);
}

nlohmann::ordered_json CheckpointInterval::toJson() const {
  return {{"machines", machines},
          {"machine_hours_between_failures", machineHours},
          {"seconds_between_failures", failureSeconds},
          {"checkpoint_bytes", bytes},
          {"copy_seconds", copySeconds},
          {"write_seconds", writeSeconds},
          {"save_steps", steps},
          {"interval_seconds", seconds},
          {"lost_share", lostShare}};
}

} // namespace qlora
