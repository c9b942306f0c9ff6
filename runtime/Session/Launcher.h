// SPDX-License-Identifier: MIT

// `qlora-run --gpus N` without another launcher: this process starts N copies
// of itself, one per rank, and watches over them.
//
// A rank finds its numbers in torchrun's variables (RANK, WORLD_SIZE, ...) and
// a socket to the launcher in QLORA_RANK_CHANNEL. Over it the launcher sends
// the job's secret, and to rank 0 also the number of the inherited socket that
// the store listens on; the rank sends back its error before it ends. So no
// secret is on a command line and no port can be taken in between.
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

#ifndef QLORA_RUNTIME_SESSION_LAUNCHER_H
#define QLORA_RUNTIME_SESSION_LAUNCHER_H

#include <optional>
#include <string>
#include <vector>

#include "runtime/Core/Status.h"
#include "runtime/Device/Socket.h"
#include "runtime/Session/RankEnvironment.h"

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

/// A rank's end of the socket to its launcher.
class RankChannel {
public:
  /// nullopt when we were not started by launchRanks. Fills in the secret and
  /// takes QLORA_RANK_CHANNEL out of the environment.
  static StatusOr<std::optional<RankChannel>> open(RankEnvironment &env);

  /// Rank 0: the socket that the store listens on. Closed on other ranks.
  FileDescriptor takeListeningSocket() { return std::move(listening); }

  /// Tells the launcher why this rank ends. Nothing is printed here.
  void reportError(const Status &status);

private:
  FileDescriptor socket;
  FileDescriptor listening;
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_LAUNCHER_H
