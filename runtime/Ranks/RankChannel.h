// SPDX-License-Identifier: MIT

// The socket between a rank and the launcher that started it (Supervisor.h).
// Its number is in the variable QLORA_RANK_CHANNEL. The launcher sends the
// job's secret, and to rank 0 also the number of the inherited socket that the
// store listens on; the rank sends back its error before it ends. So no secret
// is on a command line and no port can be taken in between. Each message is
// one packet of JSON.

#ifndef QLORA_RUNTIME_RANKS_RANKCHANNEL_H
#define QLORA_RUNTIME_RANKS_RANKCHANNEL_H

#include <cstddef>
#include <optional>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Ranks/RankEnvironment.h"

namespace qlora {

inline constexpr const char *kRankChannelVariable = "QLORA_RANK_CHANNEL";
inline constexpr size_t kMaxChannelBytes = 64 << 10;

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

#endif // QLORA_RUNTIME_RANKS_RANKCHANNEL_H
