// SPDX-License-Identifier: MIT

// What a run was, for comparing it with others later: beside metrics.jsonl and
// config.resolved.yaml, the output folder gets
//
//   environment.json  the compiler, hardware, when it began, and what a
//                     checkpoint says that it is of: ranks, threads, the
//                     program, model and data (CheckpointFacts.h)
//   plan.json         bytes of each arena, their sum, and the predicted peak
//
// and these four are in sessions/v1/NAME too, as hard links: the same file,
// which a later run into the same folder does not write over but replaces, so
// that every run's session stays. NAME is --run-name, else when the run began
// (UTC); one that is taken gets a number. Where there are no hard links the
// session has copies, of the metrics so far: metrics.jsonl is copied again at
// the end.

#ifndef QLORA_RUNTIME_SESSION_SESSIONRECORD_H
#define QLORA_RUNTIME_SESSION_SESSIONRECORD_H

#include <nlohmann/json.hpp>

#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Session/Run.h"

namespace qlora {

inline constexpr const char *kSessionsFolder = "sessions";

/// Rank 0's. What cannot be written is an error of it alone; the run goes on.
class SessionRecord {
public:
  /// `facts`: of checkpoints. After metrics.jsonl was begun.
  Status begin(const Run &run, const nlohmann::ordered_json &facts);
  /// No line of metrics.jsonl follows.
  Status end();

private:
  std::string output, folder; ///< folder is empty before begin()
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_SESSIONRECORD_H
