// SPDX-License-Identifier: MIT

// Collectives of CPU ranks, and of the hosts of GPU ranks, on a ring (Ring.h).
//
// A sum always has the order rank 0 + rank 1 + ..., whatever its size and
// transport. So this is not a ring all-reduce, in which each chunk starts at a
// different rank. Chunks go from rank 0 to the last rank, and each rank adds
// its own chunk; then the sums go round once more. In every slot a rank sends
// on what it received in the previous slot, so that all links are busy. In this
// table, x1[0] is the first chunk of rank 1:
//
//   slot   rank 0 -> 1     rank 1 -> 2     rank 2 -> 0     (3 ranks)
//      0   x0[0]
//      1   x0[1]           x0+x1 [0]
//      2   x0[2]           x0+x1 [1]       sum [0]
//      3   x0[3], sum [0]  x0+x1 [2]       sum [1]
//
// A link carries at most twice the data; in a ring all-reduce of N ranks it
// would carry 2 (N - 1) / N times the data. If all ranks are on one machine,
// sums and gathered data go through shared memory (SharedWindow.h), and empty
// messages synchronize; the bits are the same. Texts from allGather() go round
// once: N - 1 messages of a few bytes in sequence, about 50 ms for 1,000 ranks.
//
// A SEND waits for its RECV when the connection's buffer is full. Ranks never
// deadlock if all their SENDs and RECVs follow one global order: the earliest
// pending pair can always proceed.
//
// If a rank ends, its neighbours notice and close their own connections. So all
// ranks notice within the time of one message round the ring.

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

  /// Makes two groups of a rank end together (Ring::bind).
  void bind(RingCollectives &other) { Ring::bind(*ring, *other.ring); }
  /// Returns the heartbeat of the ring, or null.
  Heartbeat *heartbeat() { return ring->heartbeat(); }
  /// Uses shared memory for later sums and all-gathers; on all ranks or none.
  void useWindow(SharedWindow shared) { window = std::move(shared); }

  int rank() const override { return ring->rank(); }
  int size() const override { return ring->size(); }
  /// Runs a collective. SEND and RECV reach neighbours only: `peer` is 1 or -1.
  Status run(const CollectiveCall &call) override;
  StatusOr<std::vector<std::string>> allGather(std::string_view mine) override;
  Status checkOthers() override { return ring->checkNeighbours(); }
  std::chrono::milliseconds timeout() const override { return ring->timeout(); }
  void abort() override { ring->abort(); }

private:
  struct Pass;
  using Bytes = std::span<uint8_t>;
  using ConstBytes = std::span<const uint8_t>;

  /// Sends to the next rank and receives from the previous one.
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
  uint64_t calls = 0; ///< index of the call, to detect a mismatch of ranks
  std::vector<uint8_t> arriving, moving; ///< buffers of the current call
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RINGCOLLECTIVES_H
