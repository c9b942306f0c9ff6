// SPDX-License-Identifier: MIT

// Ranks in a circle: each has one connection to the rank after it and one to
// the rank before it, whatever their number. It was found through one exchange
// at the rendezvous (Rendezvous.h), and is bound to it: who connects proves
// the job's secret over a number that the rendezvous alone was told.
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
#include <memory>
#include <span>
#include <string_view>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Ranks/Rendezvous.h"

namespace qlora {

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

  /// All ranks call it; blocks until both neighbours are connected. The own end
  /// listens on the interface that rank 0 is reached by: loopback for a job on
  /// one machine. `timeout`: of later calls, see exchange().
  static StatusOr<std::unique_ptr<Ring>>
  connect(Rendezvous &rendezvous, std::string_view secret, int rank, int size,
          std::chrono::milliseconds patience,
          std::chrono::milliseconds timeout,
          std::chrono::milliseconds handshakeTimeout = kHandshakeTimeout);

  int rank() const { return ownRank; }
  int size() const { return ranks; }
  std::chrono::milliseconds timeout() const { return limit; }

  /// Sends a message to one neighbour while it receives another from one; null:
  /// none. kAborted where a neighbour has ended, or nothing has moved for the
  /// timeout; the connections are then closed, so that the others notice.
  Status exchange(Neighbour to, Message *sent, Neighbour from,
                  Message *received);
  /// kAborted once a neighbour is gone; does not block.
  Status checkNeighbours();
  /// Closes the connections. Any thread.
  void abort();

private:
  Ring(int rank, int size, std::chrono::milliseconds timeout)
      : ownRank(rank), ranks(size), limit(timeout) {}
  Status lost(std::string_view why);
  int rankOf(Neighbour side) const {
    return (ownRank + (side == kNext ? 1 : ranks - 1)) % ranks;
  }
  Status send(Neighbour to, Message &message, bool &hasMoved);
  Status receive(Neighbour from, Message &message, bool &hasMoved);

  const int ownRank;
  const int ranks;
  const std::chrono::milliseconds limit;
  std::array<FileDescriptor, 2> sockets; ///< by Neighbour
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RING_H
