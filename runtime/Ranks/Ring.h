// SPDX-License-Identifier: MIT

// Ranks in a ring: each has one connection to the next rank and one to the
// previous rank, for any number of ranks. Neighbours in the first ring of a job
// meet through an exchange at the rendezvous (Rendezvous.h). Neighbours in
// smaller rings meet through an exchange on the first ring. A neighbour that
// connects proves the job's secret over random bytes that only this exchange
// has sent. The first ring also has heartbeat connections (Heartbeat.h), which
// serve all rings.
//
// Later messages are neither encrypted nor signed, like NCCL's. The network
// between a job's machines is trusted; strangers who reach its ports are not.

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

/// Call index in messages of SEND and RECV, which are not counted as calls.
inline constexpr uint64_t kBetweenTwo = ~uint64_t{0};

/// A message and its header, in the caller's memory. Both ends must add buffers
/// of the same sizes; the header detects a mismatch.
class Message {
public:
  /// `call`: index of the group's call, the same at both ends.
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
  Header expected; ///< header that a received message must have
  std::array<iovec, 3> parts;
  size_t next = 0; ///< index of the first unfinished buffer
  size_t count = 1;
};

/// Neither copyable nor movable. Used by one thread, except abort().
class Ring {
public:
  enum Neighbour { kPrevious = 0, kNext = 1 };

  struct Members {
    int rank = 0; ///< this rank's index in the ring
    int size = 1;
    int first = 0;  ///< job rank at index 0 of the ring
    int stride = 1; ///< difference of job ranks between neighbours
  };
  /// Exchanges addresses, so that each rank can connect to its next rank: sends
  /// `own` to the previous rank and returns the next rank's address.
  using TellNext = std::function<StatusOr<std::string>(const std::string &own)>;
  /// Returns an error once another rank has failed. Does not block.
  using CheckOthers = std::function<Status()>;

  /// Connects to both neighbours, and blocks until then. All members call it.
  /// This rank listens on the interface with `address`. `timeout`: see
  /// exchange().
  static StatusOr<std::unique_ptr<Ring>>
  connect(const std::string &address, const TellNext &tellNext,
          const CheckOthers &checkOthers, std::string_view secret,
          const Members &members, std::chrono::milliseconds patience,
          std::chrono::milliseconds timeout, const RankTimeLimits &limits = {});
  /// Connects a job's first ring, on the interface of the connection to rank 0.
  /// Returns when all ranks are connected; if one fails, all return its error.
  /// `patience`: how long to wait for ranks.
  static StatusOr<std::unique_ptr<Ring>>
  connect(Rendezvous &rendezvous, std::string_view secret,
          std::chrono::milliseconds patience, std::chrono::milliseconds timeout,
          const RankTimeLimits &limits = {});
  ~Ring();

  /// Returns the heartbeat of this ring or a bound ring; null if there is none.
  Heartbeat *heartbeat() const;

  /// Binds two rings of a rank: a loss or abort in one ends all bound rings.
  /// `second` must not be bound yet; `first` may be. All bound rings must
  /// outlive all calls of any of them.
  static void bind(Ring &first, Ring &second);

  int rank() const { return members.rank; }
  int size() const { return members.size; }
  std::chrono::milliseconds timeout() const { return limit; }

  /// Sends a message to one neighbour and receives one from a neighbour at the
  /// same time. Either message may be null. Returns kAborted if a neighbour has
  /// ended or no byte has moved for the timeout. It then closes the
  /// connections, which other ranks notice.
  Status exchange(Neighbour to, Message *sent, Neighbour from,
                  Message *received);
  /// Returns kAborted if this or a bound ring lost a neighbour. Does not block.
  Status checkNeighbours();
  /// Closes the connections of this ring and of bound rings. Any thread.
  void abort();

private:
  Ring(const Members &members, std::chrono::milliseconds timeout)
      : members(members), limit(timeout) {}
  /// Aborts and returns the error for the loss of a neighbour.
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
  /// Returns a neighbour's rank in the job, for messages.
  int rankOf(Neighbour side) const {
    return members.first + numberOf(side) * members.stride;
  }
  Status send(Neighbour to, Message &message, bool &hasMoved);
  Status receive(Neighbour from, Message &message, bool &hasMoved);

  const Members members;
  const std::chrono::milliseconds limit;
  std::array<FileDescriptor, 2> sockets; ///< indexed by Neighbour
  std::atomic<Ring *> bound = this; ///< next bound ring, a circular list
  uint64_t call = 0;                ///< index of the current or latest call
  std::unique_ptr<Heartbeat> heart; ///< null except in the job's first ring
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RING_H
