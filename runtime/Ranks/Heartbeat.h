// SPDX-License-Identifier: MIT

// How a rank knows that its neighbours in the ring live, and why a job ends.
//
// Beside the connection that carries data, each two neighbours have one that
// carries signs of life: a few bytes a second from a thread of each, whether a
// rank computes, waits or reads a file. TCP says nothing where a cable is
// pulled or a machine stops, and a send that waits for a slow rank looks like
// one that waits for a dead one; here only silence counts. A rank that is
// silent for Timing::missed beats is lost. Beats of our own are counted, not
// seconds: a launcher may stop a whole job for hours and let it go on.
//
// The same connections carry the cause of an end from rank to rank, at once and
// both ways round the ring: what a rank says of its own failure, or what its
// neighbours saw of its loss. All ranks wait a moment for others' causes and
// then choose one by one rule, so that every host shows the same line: a rank's
// own words before what others saw, then the lowest rank. Where the network
// itself is cut, each part names the link that it misses, in the same words.

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

namespace qlora {

/// Why a job ends, as each of its ranks shows it.
struct Cause {
  int rank = 0;        ///< that failed, or was lost
  bool isLoss = false; ///< what others saw, not its own words
  std::string text;    ///< one line, which names the rank

  bool operator==(const Cause &) const = default;
};

/// One per rank of a job. Its thread ends with it.
class Heartbeat {
public:
  struct Timing {
    std::chrono::milliseconds beat = std::chrono::seconds(1);
    int missed = 10; ///< beats without one of a neighbour
    /// From the first cause until one is chosen.
    std::chrono::milliseconds settle = std::chrono::milliseconds(500);
    /// For the cause of what was seen elsewhere first.
    std::chrono::milliseconds word = std::chrono::seconds(2);
  };
  /// A neighbour, by Ring::Neighbour: the one before, the one after.
  struct Peer {
    int rank = 0;
    FileDescriptor socket;
  };

  /// `abort`: called, from any thread, whenever there is a cause.
  static StatusOr<std::unique_ptr<Heartbeat>> start(int rank,
                                                    std::array<Peer, 2> peers,
                                                    std::function<void()> abort,
                                                    const Timing &timing);
  /// Says goodbye: an end is no loss.
  ~Heartbeat();

  /// All ranks have a heartbeat: from now on a neighbour's silence is a loss.
  /// Before, a rank may still wait for its other neighbour.
  void countSilence();

  /// The host of each rank; until then, messages have the ranks' numbers.
  void nameHosts(std::vector<std::string> names);
  std::string nameOf(int rank) const;

  /// Which collective this rank is in: told with each beat.
  void setCall(uint64_t call) { ownCall = call; }
  /// The one that a neighbour was in at its last beat.
  uint64_t callOf(int side) const { return peerCalls[side]; }

  /// This rank ends: for `seen`, unless there is a better cause. Tells the
  /// others and returns what all show. `isSecondHand`: a neighbour's connection
  /// has closed, or another rank has said that it fails; what the heartbeats
  /// say of it comes first, unless that neighbour has said goodbye.
  Cause conclude(Cause seen, bool isSecondHand);
  bool hasCause() const;

private:
  struct Header;
  struct Side {
    int rank = 0;
    FileDescriptor socket;
    std::string arrived; ///< of a message that is not there as a whole
    int missed = 0;      ///< our beats since its last one
    bool isOpen = true;  ///< false: it has ended, or is lost
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
  std::vector<Cause> causes; ///< that came before one was chosen
  std::chrono::steady_clock::time_point firstCause;
  bool isStopping = false;
  bool countsSilence = false;
  FileDescriptor wake;
  std::thread thread;
};

/// What this machine is called.
std::string hostName();

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_HEARTBEAT_H
