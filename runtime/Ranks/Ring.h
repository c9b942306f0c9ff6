// SPDX-License-Identifier: MIT

// Ranks in a circle: each has one connection to the rank after it and one to
// the rank before it, whatever their number. The first ring of a job was found
// through one exchange at the rendezvous (Rendezvous.h), a ring of some of the
// ranks through one on the first. It is bound to it: who connects proves the
// job's secret over a number that was told there alone. The first ring has
// connections for signs of life beside those for data (Heartbeat.h), which
// serve the others too.
//
// What travels afterwards is neither encrypted nor signed, as NCCL's is not:
// the network between the machines of a job is trusted, strangers who can
// reach its ports are not.

#ifndef QLORA_RUNTIME_RANKS_RING_H
#define QLORA_RUNTIME_RANKS_RING_H

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Ranks/Heartbeat.h"
#include "runtime/Ranks/Rendezvous.h"

namespace qlora {

/// The call of messages between two ranks, which the others do not count.
inline constexpr uint64_t kBetweenTwo = ~uint64_t{0};

/// A message and its header, in the memory of the caller. Both ends know its
/// parts; the header finds out where they do not agree.
class Message {
public:
  /// `call`: which call of the group it belongs to, the same at both ends.
  explicit Message(uint64_t call);
  Message(const Message &) = delete;
  void add(std::span<const uint8_t> part);

private:
  friend class Ring;
  struct Header {
    uint64_t call, bytes;
    bool operator==(const Header &) const = default;
  };
  bool isDone() const { return next == count; }
  void advance(size_t bytes);

  Header header;
  Header expected; ///< of a message that is received
  std::array<iovec, 3> parts;
  size_t next = 0; ///< part, of which some may be done
  size_t count = 1;
};

/// Not copied, not moved. One thread, but for abort().
class Ring {
public:
  enum Neighbour { kPrevious = 0, kNext = 1 };

  struct Members {
    int rank = 0; ///< which of them this one is
    int size = 1;
    int first = 0; ///< rank in the job of number 0
    int stride = 1; ///< and from each to the next one
  };
  /// Gives a few bytes and is given those of the rank after this one.
  using TellNext = std::function<StatusOr<std::string>(const std::string &own)>;

  /// All members call it; blocks until both neighbours are connected. The own
  /// end listens on the interface with `address`. `timeout`: of later calls,
  /// see exchange().
  static StatusOr<std::unique_ptr<Ring>>
  connect(const std::string &address, const TellNext &tellNext,
          std::string_view secret, const Members &members,
          std::chrono::milliseconds patience, std::chrono::milliseconds timeout,
          std::chrono::milliseconds handshakeTimeout = kHandshakeTimeout);
  /// The first ring of a job, on the interface that rank 0 is reached by:
  /// loopback for a job on one machine. Returns when all ranks are in it, or on
  /// all with the same error. `patience`: for ranks that have not come yet.
  static StatusOr<std::unique_ptr<Ring>>
  connect(Rendezvous &rendezvous, std::string_view secret,
          std::chrono::milliseconds patience, std::chrono::milliseconds timeout,
          const Heartbeat::Timing &timing = {},
          std::chrono::milliseconds handshakeTimeout = kHandshakeTimeout);
  ~Ring();

  /// Of this ring or of one that it is bound to; null: of none.
  Heartbeat *heartbeat() const;

  /// From now on the second ring of a rank, which is bound to none, ends together
  /// with the first and all that are bound to it: what is lost or aborted in one
  /// is so in all. They outlive all calls of any.
  static void bind(Ring &first, Ring &second);

  int rank() const { return members.rank; }
  int size() const { return members.size; }
  std::chrono::milliseconds timeout() const { return limit; }

  /// Sends a message to one neighbour while it receives another from one; null:
  /// none. kAborted where a neighbour has ended, or nothing has moved for the
  /// timeout; the connections are then closed, so that the others notice.
  Status exchange(Neighbour to, Message *sent, Neighbour from,
                  Message *received);
  /// kAborted once a neighbour is gone, also of a bound ring; does not block.
  Status checkNeighbours();
  /// Closes the connections, also of the bound rings. Any thread.
  void abort();

private:
  Ring(const Members &members, std::chrono::milliseconds timeout)
      : members(members), limit(timeout) {}
  /// What a call returns that has seen so much of a neighbour.
  Status lost(Neighbour side, const Status &seen, bool hasClosed);
  Status ended(Neighbour side);
  Status silent(Neighbour side);
  std::string nameOf(Neighbour side) const;
  void noteCall(const Message *message);
  Status startHeartbeat(std::array<FileDescriptor, 2> controls,
                        const Heartbeat::Timing &timing);
  void close();
  Status checkOwn();
  int numberOf(Neighbour side) const {
    return (rank() + (side == kNext ? 1 : size() - 1)) % size();
  }
  /// In the job, for messages.
  int rankOf(Neighbour side) const {
    return members.first + numberOf(side) * members.stride;
  }
  Status send(Neighbour to, Message &message, bool &hasMoved);
  Status receive(Neighbour from, Message &message, bool &hasMoved);

  const Members members;
  const std::chrono::milliseconds limit;
  std::array<FileDescriptor, 2> sockets; ///< by Neighbour
  std::atomic<Ring *> bound = this; ///< from one to the next, in a circle
  uint64_t call = 0;                   ///< that it is in, or was last
  std::unique_ptr<Heartbeat> heart;    ///< of the first ring of a job
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RING_H
