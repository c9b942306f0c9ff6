// SPDX-License-Identifier: MIT

// Detects lost neighbours in the ring, and agrees on the cause of a job's end.
//
// In addition to the data connection, each pair of neighbours has a heartbeat
// connection. A thread of each rank sends a few bytes per second, whether the
// rank computes, waits or reads a file. TCP reports nothing if a cable is
// pulled or a machine stops, and a send to a slow rank looks like a send to a
// dead one. Here only silence counts: a rank that is silent for Timing::missed
// beats is lost. The rank counts its own beats, not seconds, because a launcher
// may stop a whole job for hours and resume it.
//
// The same connections pass the cause of a job's end from rank to rank, at once
// and in both directions: a rank's report of its own failure, or its
// neighbours' report of its loss. All ranks wait briefly for other causes and
// then choose by one rule, so that every host shows the same line: reports of
// own failures come before reports of losses, then the lowest rank wins. If the
// network is cut, each side names the broken link in the same words.

#ifndef QLORA_RUNTIME_RANKS_HEARTBEAT_H
#define QLORA_RUNTIME_RANKS_HEARTBEAT_H

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Ranks/RankTimeLimits.h"

namespace qlora {

/// The cause of a job's end. All ranks print the same one.
struct Cause {
  int rank = 0;        ///< rank that failed or was lost
  bool isLoss = false; ///< reported by other ranks, not by rank `rank`
  std::string text;    ///< one line, which names the rank

  bool operator==(const Cause &) const = default;
};

/// One per rank, with a thread that the destructor ends.
class Heartbeat {
public:
  using Timing = HeartbeatTiming;

  /// A neighbour. Arrays of peers are indexed by Ring::Neighbour.
  struct Peer {
    int rank = 0;
    FileDescriptor socket;
  };

  /// Starts the thread. `abort` is called, from any thread, for each cause.
  static StatusOr<std::unique_ptr<Heartbeat>> start(int rank,
                                                    std::array<Peer, 2> peers,
                                                    std::function<void()> abort,
                                                    const Timing &timing);
  /// Sends a goodbye, so that neighbours do not report a loss.
  ~Heartbeat();

  /// Treats a neighbour's silence as a loss from now on. Called when all ranks
  /// have a heartbeat; before that, a rank may wait for its other neighbour.
  void countSilence();

  /// Sets each rank's host name. Until then, messages name ranks without hosts.
  void nameHosts(std::vector<std::string> names);
  std::string nameOf(int rank) const;

  /// Sets the index of this rank's current collective. Each beat sends it.
  void setCall(uint64_t call) { ownCall = call; }
  /// Returns the collective's index from a neighbour's latest beat.
  uint64_t callOf(int side) const { return peerCalls[side]; }

  /// Adds `seen` to the causes of the job's end, sends it to the other ranks,
  /// and returns the cause that all ranks print. `isSecondHand`: this rank only
  /// saw a closed connection or another rank's error. It then waits briefly for
  /// a cause from the heartbeats, and adds `seen` only if none arrives.
  Cause conclude(Cause seen, bool isSecondHand);
  bool hasCause() const;

private:
  struct Header;
  struct Side {
    int rank = 0;
    FileDescriptor socket;
    std::string arrived; ///< bytes of an incomplete message
    int missed = 0; ///< this rank's beats since the neighbour's latest beat
    bool isOpen = true;  ///< false: the rank has ended, or is lost
    bool saidGoodbye = false;
  };

  Heartbeat(int rank, std::array<Peer, 2> peers, std::function<void()> abort,
            const Timing &timing);
  void watch();
  void beat();
  void receive(int side);
  void read(int side);
  void add(const Cause &cause, std::chrono::milliseconds known);
  bool saidGoodbye(int ofRank) const;
  void send(int side, Header header, const std::string &text);
  std::string nameLocked(int ofRank) const;

  const int rank;
  const std::function<void()> abort;
  const Timing timing;
  std::atomic<uint64_t> ownCall = 0;
  std::array<std::atomic<uint64_t>, 2> peerCalls{};
  mutable std::mutex mutex; ///< guards everything below
  std::condition_variable changed;
  std::array<Side, 2> sides;
  std::vector<std::string> hosts;
  std::vector<Cause> causes; ///< causes received before one was chosen
  std::chrono::steady_clock::time_point firstCause;
  bool isStopping = false;
  bool countsSilence = false;
  FileDescriptor wake;
  std::thread thread;
};

/// Returns this machine's host name.
std::string hostName();

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_HEARTBEAT_H
