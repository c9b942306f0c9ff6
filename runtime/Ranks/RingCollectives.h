// SPDX-License-Identifier: MIT

// Collectives of CPU ranks, and the talk of all hosts, on a ring (Ring.h).
//
// A sum has one order, rank 0 + rank 1 + ..., whatever its size and its way. So
// it is no ring all-reduce, in which each part begins at another rank: chunks
// go from rank 0 to the last one, each rank adds its own, and then once more
// round with the sum. In every slot of time a rank sends the chunks that it was
// given in the slot before, so that all links are busy:
//
//   slot   rank 0 -> 1     rank 1 -> 2     rank 2 -> 0     (3 ranks)
//      0   x0[0]
//      1   x0[1]           x0+x1 [0]
//      2   x0[2]           x0+x1 [1]       sum [0]
//      3   x0[3], sum [0]  x0+x1 [2]       sum [1]
//
// A link carries at most twice the data, a ring all-reduce 2 (N - 1) / N of it,
// and N ranks have 2 N connections; N = 2 is the same. Where all ranks are on
// one machine sums and gathered pieces go through memory that they share
// (SharedWindow.h), and empty messages say when; the bits are the same. Hosts'
// texts go round once: N - 1 messages of a few bytes one after the other, some
// 50 ms for 1,000 ranks.
//
// A SEND waits for its RECV once the connection has taken what it takes. Ranks
// that have what they send each other in one order never wait in a circle:
// whoever is first in the order of any two finds the other one there.
//
// A rank that ends is noticed by its neighbours, which then close their own
// connections: it takes no more than a message round the ring.

#ifndef QLORA_RUNTIME_RANKS_RINGCOLLECTIVES_H
#define QLORA_RUNTIME_RANKS_RINGCOLLECTIVES_H

#include <memory>
#include <optional>
#include <vector>

#include "runtime/Device/Collectives.h"
#include "runtime/Ranks/Ring.h"
#include "runtime/Ranks/SharedWindow.h"

namespace qlora {

class RingCollectives final : public Collectives {
public:
  explicit RingCollectives(std::unique_ptr<Ring> ring)
      : ring(std::move(ring)) {}

  /// From now on the groups of a rank end together (Ring::bind).
  void bind(RingCollectives &other) { Ring::bind(*ring, *other.ring); }
  /// See Ring::heartbeat.
  Heartbeat *heartbeat() { return ring->heartbeat(); }
  /// From now on sums and gathered pieces go through it. On all ranks or on
  /// none.
  void useWindow(SharedWindow shared) { window = std::move(shared); }

  int rank() const override { return ring->rank(); }
  int size() const override { return ring->size(); }
  /// SEND and RECV reach neighbours only: `peer` is 1 or -1.
  Status run(const CollectiveCall &call) override;
  StatusOr<std::vector<std::string>> allGather(std::string_view mine) override;
  Status checkOthers() override { return ring->checkNeighbours(); }
  std::chrono::milliseconds timeout() const override {
    return ring->timeout();
  }
  void abort() override { ring->abort(); }

private:
  struct Pass;
  using Bytes = std::span<uint8_t>;
  using ConstBytes = std::span<const uint8_t>;

  /// To the next rank, from the previous one.
  Status step(ConstBytes sent, Bytes received);
  Status meet();
  Status runPasses(std::span<const Pass> passes, qlora_dtype dtype, Bytes data);
  Status allReduce(qlora_dtype dtype, Bytes data);
  Status sumInWindow(qlora_dtype dtype, Bytes data);
  Status gather(Bytes to, ConstBytes own);
  Status gatherInWindow(Bytes to, ConstBytes own);
  Status reduceScatter(const CollectiveCall &call);
  Status allToAll(Bytes to, ConstBytes from);
  Status sendOrReceive(const CollectiveCall &call);

  std::unique_ptr<Ring> ring;
  std::optional<SharedWindow> window;
  uint64_t calls = 0; ///< numbers them, so that ranks notice another one's
  std::vector<uint8_t> arriving, moving; ///< of a call
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RINGCOLLECTIVES_H
