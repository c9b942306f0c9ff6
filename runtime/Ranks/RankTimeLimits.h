// SPDX-License-Identifier: MIT

// How long ranks wait for each other while a job starts, and for a sign of life
// afterwards. RankEnvironment::patience is the wait for ranks that have not
// started yet. Tests use a tenth (tests/runtime/Ranks/TenthLimits.h).

#ifndef QLORA_RUNTIME_RANKS_RANKTIMELIMITS_H
#define QLORA_RUNTIME_RANKS_RANKTIMELIMITS_H

#include <chrono>

namespace qlora {

/// Times of Heartbeat.h.
struct HeartbeatTiming {
  std::chrono::milliseconds beat = std::chrono::seconds(1);
  int missed = 10; ///< beats of this rank without one from the neighbour
  /// Time from the first cause until the rule chooses a cause.
  std::chrono::milliseconds settle = std::chrono::milliseconds(500);
  /// If other ranks noticed the end first: how long to wait for its cause.
  std::chrono::milliseconds word = std::chrono::seconds(2);
};

struct RankTimeLimits {
  /// How long a connection may take to prove the secret. Other connections do
  /// not wait for it, see ConnectionLoop.h.
  std::chrono::milliseconds handshake = std::chrono::seconds(10);
  /// Time to wait for missing ranks after a client with another secret.
  std::chrono::milliseconds stranger = std::chrono::seconds(5);
  /// How long two neighbours may take to connect once both have started.
  std::chrono::milliseconds neighbours = std::chrono::seconds(15);
  /// Additional time that clients wait, so that the server's error comes first.
  std::chrono::milliseconds longer = std::chrono::seconds(10);
  /// How long to retry a port that closes connections at once: the server of an
  /// earlier start may be about to end.
  std::chrono::milliseconds closing = std::chrono::seconds(5);
  /// How long rank 0 stays to inform late ranks of a failed start.
  std::chrono::milliseconds telling = std::chrono::seconds(15);
  HeartbeatTiming heartbeat;

  /// Time for the second exchange, counted from the end of the first:
  /// ranks connect to their neighbours in it.
  std::chrono::milliseconds secondExchange() const { return 2 * neighbours; }
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RANKTIMELIMITS_H
