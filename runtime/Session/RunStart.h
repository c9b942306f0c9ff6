// SPDX-License-Identifier: MIT

// The start of a run: from scratch or from a checkpoint, with the settings that
// must match the checkpoint for bit-identical results.

#ifndef QLORA_RUNTIME_SESSION_RUNSTART_H
#define QLORA_RUNTIME_SESSION_RUNSTART_H

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <vector>

#include "runtime/Checkpoint/CheckpointMetadata.h"
#include "runtime/Checkpoint/Resume.h"
#include "runtime/Session/SessionRequest.h"

namespace qlora {

struct RunStart {
  std::optional<ResumePoint> resume; ///< empty: starts from scratch
  int64_t accumulation = 1; ///< micro-batches of a step, on each rank
  nlohmann::ordered_json askedAccumulation; ///< the option, as given
  std::string run; ///< run id (CheckpointFolder.h), on rank 0
  nlohmann::ordered_json facts;     ///< metadata of this run's checkpoints
  std::vector<std::string> remarks; ///< messages for the user, on rank 0

  /// Finds the checkpoint before the device is opened. Unless `request` sets
  /// them, takes threads and the GPU's matmul algorithms from the checkpoint.
  /// Sets gradient accumulation in `options` if it follows from a global batch
  /// size or the checkpoint. All ranks call it.
  static StatusOr<RunStart> find(Options &options, RankGroup &group,
                                 SessionRequest &request);
  /// Checks, after the data are opened, that the checkpoint fits this run.
  Status compare(const RunMetadata &own);
  int64_t stepsDone() const { return resume ? resume->step() : 0; }
  /// Makes this run the folder's owner. Rank 0 calls it before it writes files.
  Status takeFolder(const std::string &output);
  /// Returns the text with which metrics.jsonl starts.
  StatusOr<std::string> history() const;
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_RUNSTART_H
