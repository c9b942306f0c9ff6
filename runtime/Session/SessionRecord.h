// SPDX-License-Identifier: MIT

// Records a run for later comparison with others: next to metrics.jsonl and
// config.resolved.yaml, the output folder gets
//
//   environment.json  compiler, hardware, start time, and the checkpoint
//                     metadata: ranks, threads, program, model and data
//                     (CheckpointMetadata.h)
//   plan.json         bytes of each arena, their sum, and the predicted peak
//
// These four files are also in sessions/v1/NAME, as hard links. A later run
// into the same folder replaces files instead of overwriting them, so every
// run's session stays. NAME is --run-name, else the start time (UTC); a number
// is appended if it is taken. If the file system has no hard links, the session
// has copies of the state so far, and metrics.jsonl is copied again at the end.

#ifndef QLORA_RUNTIME_SESSION_SESSIONRECORD_H
#define QLORA_RUNTIME_SESSION_SESSIONRECORD_H

#include <nlohmann/json.hpp>

#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Checkpoint/Run.h"

namespace qlora {

inline constexpr const char *kSessionsFolder = "sessions";

/// Records a run, on rank 0. The run may continue after an error.
class SessionRecord {
public:
  /// Call after metrics.jsonl was created. `facts`: the checkpoint metadata.
  Status begin(const Run &run, const nlohmann::ordered_json &facts);
  /// Call after the last line of metrics.jsonl.
  Status end();

private:
  std::string output, folder; ///< folder is empty before begin()
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_SESSIONRECORD_H
