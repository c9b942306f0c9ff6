// SPDX-License-Identifier: MIT

// Collectives of CPU ranks, over Gloo's TCP transport. Its exceptions end
// here.
//
// A sum has one order: rank 0 + rank 1 + ..., whatever the size and the way.
// Rank r is given part r of everybody's data, adds the parts up, and gives the
// result to all: the traffic of a ring in two rounds. (Gloo's own all-reduce
// has no way to wake a call that waits for a rank that will not come; abort()
// needs it.) Where all ranks are on one machine the data goes through memory
// that they share (SharedWindow.h), and Gloo's messages, of a byte, say when;
// else the messages are the data. K ranks and one rank with K accumulations
// agree to rounding only.

#ifndef QLORA_RUNTIME_RANKS_GLOOCOLLECTIVES_H
#define QLORA_RUNTIME_RANKS_GLOOCOLLECTIVES_H

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Device/Collectives.h"
#include "runtime/Ranks/SharedWindow.h"
#include "runtime/Ranks/TcpStore.h"

namespace gloo {
class Context;
namespace transport {
class UnboundBuffer;
} // namespace transport
} // namespace gloo

namespace qlora {

class GlooCollectives final : public Collectives {
public:
  /// Connects every pair of ranks, by addresses exchanged through the store.
  /// Uses the network interface that rank 0 is reached by: loopback for a job
  /// on one machine. `timeout`: of connecting, and of each later call, which
  /// includes waiting for the slowest rank; a rank that has ended is noticed
  /// at once. `window`: on all ranks or on none.
  static StatusOr<std::unique_ptr<Collectives>>
  connect(TcpStore &store, int rank, int size,
          std::chrono::milliseconds timeout,
          std::optional<SharedWindow> window = std::nullopt);
  ~GlooCollectives() override;

  int rank() const override;
  int size() const override;
  Status allReduceSum(float *data, int64_t count) override;
  Status checkOthers() override;
  std::chrono::milliseconds timeout() const override;
  void abort() override;

private:
  using Buffer = gloo::transport::UnboundBuffer;
  struct ActiveCall;
  /// Bytes of a buffer.
  struct Piece {
    size_t offset, bytes;
  };
  using PieceOfRank = std::function<Piece(int rank)>;

  GlooCollectives(std::shared_ptr<gloo::Context> context,
                  std::optional<SharedWindow> window);
  void watchOthers();
  Status lost(const std::exception &error) const;
  std::unique_ptr<Buffer> bufferOf(void *data, size_t bytes);
  /// Every rank sends each of the others a piece, and waits for theirs.
  void exchange(Buffer &from, const PieceOfRank &sent, Buffer &into,
                const PieceOfRank &received);
  void sumByMessages(float *data, int64_t count);
  void sumOwnPart(float *data, int64_t count);
  void sumInWindow(float *data, int64_t count);
  /// Elements [partBegin(r), partBegin(r + 1)) are summed by rank r.
  int64_t partBegin(int rank, int64_t count) const;
  Piece partOf(int rank, int64_t count) const;

  std::shared_ptr<gloo::Context> context;
  std::optional<SharedWindow> window;
  std::vector<float> scratch; ///< all ranks' versions of our part; no window
  uint64_t slot = 0; ///< numbers the rounds, so that messages find theirs
  char neverSent = 0;
  /// Waits for a byte from every other rank, which none sends: only the end
  /// of a connection reaches it.
  std::unique_ptr<Buffer> others;

  std::mutex mutex; ///< guards what follows
  bool isAborted = false;
  std::vector<Buffer *> active; ///< what a call is waiting on
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_GLOOCOLLECTIVES_H
