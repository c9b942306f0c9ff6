// SPDX-License-Identifier: MIT

// `qlora-run --gpus N` without another launcher: this process starts N copies
// of itself, one per rank, and supervises them.
//
// A rank finds its numbers in torchrun's variables (RANK, WORLD_SIZE, ...) and
// a socket to the launcher in one of ours (RankChannel).
//
// What the launcher promises:
//  * the first failure is shown once, with its rank: a rank's own error, or
//    the signal that killed it. Errors that only say that another rank is gone
//    (kAborted) are not shown when there is a better one;
//  * after a failure the other ranks have two seconds to end, then they are
//    killed; the exit code is not 0;
//  * a first SIGINT or SIGTERM is passed to every rank once (each is in a
//    process group of its own, so that a terminal does not send it twice); a
//    second one kills them;
//  * when the launcher itself is killed, the system kills the ranks.

#ifndef QLORA_RUNTIME_RANKS_SUPERVISOR_H
#define QLORA_RUNTIME_RANKS_SUPERVISOR_H

#include <string>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

struct LaunchRequest {
  std::string executable;             ///< "/proc/self/exe"
  std::vector<std::string> arguments; ///< with argv[0]
  int ranks = 1;
};

struct LaunchResult {
  int exitCode = 0;
  Status error; ///< the first cause, "rank 1: ..."; OK when all went well or
                ///< the ranks were stopped by the user
};

/// Returns when every rank has ended. Must be called before any thread is
/// started: it forks, and blocks signals for the calling thread.
LaunchResult launchRanks(const LaunchRequest &request);

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_SUPERVISOR_H
