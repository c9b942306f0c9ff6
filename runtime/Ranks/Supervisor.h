// SPDX-License-Identifier: MIT

// `qlora-run --gpus N` without another launcher: this process starts N copies
// of itself, one per rank, and supervises them.
//
// A rank gets torchrun's variables (RANK, WORLD_SIZE, ...), and in
// QLORA_RANK_CHANNEL a socket to the launcher (RankChannel).
//
// The launcher guarantees:
//  * The first failure is shown once, with its rank: a rank's own error, or
//    the signal that killed it. Errors which only report that another rank is
//    gone (kAborted) are not shown if there is a better one.
//  * After a failure the other ranks have two seconds to end, then they are
//    killed. The exit code is not 0.
//  * The first SIGINT or SIGTERM is passed to every rank once. Each rank has a
//    separate process group, so that a terminal does not send it twice. A
//    second signal kills the ranks.
//  * If the launcher itself is killed, the system kills the ranks.

#ifndef QLORA_RUNTIME_RANKS_SUPERVISOR_H
#define QLORA_RUNTIME_RANKS_SUPERVISOR_H

#include <chrono>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

struct LaunchRequest {
  std::string executable;             ///< path of the program: "/proc/self/exe"
  std::vector<std::string> arguments; ///< includes argv[0]
  int ranks = 1;
  /// After a failure the other ranks have this time to end.
  std::chrono::milliseconds grace = std::chrono::seconds(2);
};

struct LaunchResult {
  int exitCode = 0;
  Status error; ///< the first cause, "rank 1: ..."; OK on success, or if the
                ///< user stopped the ranks
};

/// Starts the ranks and returns when all have ended. Must be called before any
/// thread is started: it forks, and blocks signals for the calling thread.
LaunchResult launchRanks(const LaunchRequest &request);

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_SUPERVISOR_H
