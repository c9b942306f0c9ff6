// SPDX-License-Identifier: MIT

// How long ranks wait for each other while a job starts, and for a sign of life
// afterwards. RankEnvironment::patience is the wait for ranks that have not
// started yet. Tests use a tenth of these times
// (tests/runtime/Ranks/TenthLimits.h).

#ifndef QLORA_RUNTIME_RANKS_RANKTIMELIMITS_H
#define QLORA_RUNTIME_RANKS_RANKTIMELIMITS_H

#include <chrono>

namespace qlora {

/// Times of the heartbeat (Heartbeat.h).
struct HeartbeatTiming {
  std::chrono::milliseconds beat = std::chrono::seconds(1);
  /// A neighbour is lost if it is silent during this many beats of this rank.
  int missed = 10;
  /// Time from a rank's first cause until it chooses among all causes.
  std::chrono::milliseconds settle = std::chrono::milliseconds(500);
  /// How long to wait for a cause if a rank only sees a closed connection.
  std::chrono::milliseconds word = std::chrono::seconds(2);
};

struct RankTimeLimits {
  /// How long a connection may take to prove the secret. Other connections do
  /// not wait for it, see ConnectionLoop.h.
  std::chrono::milliseconds handshake = std::chrono::seconds(10);
  /// Time to wait for missing ranks after a client has used a wrong secret.
  std::chrono::milliseconds stranger = std::chrono::seconds(5);
  /// How long two neighbours may take to connect once both have started.
  std::chrono::milliseconds neighbours = std::chrono::seconds(15);
  /// Additional time that clients wait, so that the server's error comes first.
  std::chrono::milliseconds longer = std::chrono::seconds(10);
  /// How long a client retries if rank 0's port closes each connection at once.
  /// Rank 0 of an earlier job may still be shutting down on this port.
  std::chrono::milliseconds closing = std::chrono::seconds(5);
  /// How long rank 0 stays to inform late ranks of a failed start.
  std::chrono::milliseconds telling = std::chrono::seconds(15);
  HeartbeatTiming heartbeat;

  /// Time from the end of the rendezvous's first exchange to the end of the
  /// second. Ranks connect to their neighbours in it.
  std::chrono::milliseconds secondExchange() const { return 2 * neighbours; }
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RANKTIMELIMITS_H
