// SPDX-License-Identifier: MIT

// How a run begins: anew, or where a checkpoint ends, with what its bits depend
// on.

#ifndef QLORA_RUNTIME_SESSION_RUNSTART_H
#define QLORA_RUNTIME_SESSION_RUNSTART_H

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <vector>

#include "runtime/Session/CheckpointFacts.h"
#include "runtime/Session/Resume.h"
#include "runtime/Session/SessionRequest.h"

namespace qlora {

struct RunStart {
  std::optional<ResumePoint> resume; ///< none: anew
  int64_t accumulation = 1; ///< micro-batches of a step, on each rank
  nlohmann::ordered_json askedAccumulation; ///< what the options said
  std::string run; ///< its id (CheckpointFolder.h); rank 0's
  nlohmann::ordered_json facts; ///< of this run's checkpoints
  std::vector<std::string> remarks; ///< for the user; rank 0's

  /// Before the device is opened: threads, and the algorithms of a GPU's
  /// matmuls, become the checkpoint's in `request` if it does not say, and
  /// gradient accumulation that follows from a global batch size or from the
  /// checkpoint is set in `options`. All ranks call it.
  static StatusOr<RunStart> find(Options &options, RankGroup &group,
                                 SessionRequest &request);
  /// Once the data are open: whether this run can go on with that checkpoint.
  Status compare(const RunFacts &own);
  int64_t stepsDone() const { return resume ? resume->step() : 0; }
  /// Makes the output folder this run's. Rank 0's, before its first file.
  Status takeFolder(const std::string &output);
  /// What metrics.jsonl begins with.
  StatusOr<std::string> history() const;
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_RUNSTART_H
