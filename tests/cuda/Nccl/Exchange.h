// SPDX-License-Identifier: MIT

// Memory shared by the ranks of a communicator, which are processes of one
// machine. The rank that creates the unique id owns this memory. The memory has
// no name; the id contains its location. So nothing is left when all ranks are
// killed.
//
// Every rank has two slots for the operands of a collective, because the next
// collective may begin before the slowest rank has read the operands. Dead
// ranks are not detected: waiting for one never ends, as on a GPU.
//
// A rank makes a call on the host. A collective is one execution of the call on
// the GPU. A captured call runs as a collective in each launch of its graph. In
// NCCL, all ranks or none must capture a call, and they must launch the graphs
// of the same capture together. To check this, ranks publish whether they
// capture each call, and each collective names its call.

#ifndef QLORA_TESTS_CUDA_NCCL_EXCHANGE_H
#define QLORA_TESTS_CUDA_NCCL_EXCHANGE_H

#include "runtime/Kernels/Cuda/CudaTypes.h"

#include <atomic>
#include <memory>
#include <string>

namespace qlora::platform {

/// A collective call of a rank. Calls are numbered from 0, in the same order on
/// all ranks.
struct CollectiveCall {
  uint64_t number = 0;
  bool isCaptured = false;

  bool operator==(const CollectiveCall &) const = default;
  /// Returns "runs its call 3" or "replays what it captured in its call 3".
  std::string text() const;
};

/// A rank's operands of a collective. All fields except `from` are equal on all
/// ranks.
struct Operands {
  enum Kind { kAllReduce, kAllGather, kReduceScatter, kBroadcast };
  Kind kind = kAllReduce;
  int type = 0; ///< ncclDataType_t
  int root = 0; ///< of kBroadcast
  size_t bytes = 0;
  const void *from = nullptr;

  bool isSum() const { return kind == kAllReduce || kind == kReduceScatter; }
  bool matches(const Operands &other) const {
    return kind == other.kind && type == other.type && root == other.root &&
           bytes == other.bytes;
  }
  /// Returns "ncclAllReduce of 64 bytes of type 7".
  std::string text() const;
};

class Exchange {
public:
  static constexpr int kMostRanks = 16;
  static constexpr size_t kMostBytes = size_t{256} << 20;
  static constexpr size_t kMostSent = size_t{4} << 20; ///< to one other rank

  /// Creates the id of a new group; returns false on failure.
  static bool create(ncclUniqueId &id);
  /// Returns the group with this id; null if its owner has ended.
  static std::shared_ptr<Exchange> open(const ncclUniqueId &id, int rank,
                                        int size);
  ~Exchange();

  /// Publishes that this rank has joined, with its GPU and its host (any value
  /// that the ranks of one host have in common). Returns an error, or "".
  std::string join(int device, uint64_t host);
  bool haveAllJoined() const;
  /// Returns another rank on the same GPU of the same host, or -1.
  int rankOnSameGpu() const;
  /// Returns whether a rank is on another host.
  bool hasOtherHost() const;

  /// A rank's arguments of a split: colour, key, and the id of a new group.
  /// Each colour uses the id of its first rank.
  struct Split {
    int color = 0, key = 0;
    ncclUniqueId id{};
  };
  /// Offers a split to the other ranks. Returns false if another rank has not
  /// yet made its previous offer.
  bool offer(const Split &split);
  /// Returns whether all ranks have made as many offers as this rank.
  bool haveAllOffered() const;
  /// The new group of this rank's colour, and this rank's index in it.
  struct Part {
    ncclUniqueId id{};
    int rank = 0, size = 0;
  };
  Part partOf() const;

  /// Publishes that this rank makes a call.
  void enter(const CollectiveCall &call);
  /// Returns whether all other ranks have made that call.
  bool haveAllEntered(uint64_t number) const;
  /// Returns an error if this rank cannot capture `call`, or "". `done` is the
  /// number of collectives that this rank has run. `isIdle` means that its GPU
  /// has no work left. It is an error if another rank
  ///   - makes this call without a capture;
  ///   - has started collective `done` before it makes this call, and this rank
  ///     is idle. Then both ranks would wait for each other forever.
  std::string objectionToCapture(const CollectiveCall &call, uint64_t done,
                                 bool isIdle) const;

  /// Publishes operands of the collective with that number. Returns false while
  /// a rank that is two collectives behind still uses the slot.
  bool publish(uint64_t number, const CollectiveCall &call,
               const Operands &operands);
  bool haveAllPublished(uint64_t number) const;
  /// Returns which rank's call or operands differ from this rank's, or "".
  std::string objectionTo(uint64_t number) const;
  /// Computes and writes this rank's result; sums are in the order of the
  /// ranks.
  void finish(uint64_t number, const Operands &operands, void *to);

  /// Sends bytes to a rank; returns false while that rank has not received
  /// earlier bytes.
  bool send(int peer, const void *from, size_t bytes);
  /// Returns 1 if the peer has sent this many bytes, 0 if nothing, and -1 for
  /// another size.
  int hasSent(int peer, size_t bytes) const;
  void receive(int peer, void *to);

  /// Publishes that this rank takes no further part.
  void finish();
  bool haveAllFinished() const;

private:
  static constexpr size_t kMostCallsAhead = 256;
  struct Rank {
    std::atomic<int> joined; ///< its GPU + 1
    std::atomic<int> size;   ///< of the group, as passed to open()
    std::atomic<uint64_t> host;
    std::atomic<bool> hasFinished;
    std::atomic<uint64_t> offered; ///< splits
    Split splits[2];
    std::atomic<uint64_t> published, finished; ///< collectives
    Operands operands[2];
    CollectiveCall calls[2];
    /// A ring buffer with (number + 1) * 2 for each call, plus 1 if captured.
    /// An entry of a later call than expected means that the rank did not
    /// capture the expected call, because captured calls wait for all ranks.
    std::atomic<uint64_t> entered[kMostCallsAhead];
  };
  /// Bytes from one rank to another, sent but not yet received.
  struct Mailbox {
    std::atomic<uint64_t> sent, received;
    size_t bytes;
  };
  struct Shared {
    Rank ranks[kMostRanks];
    Mailbox mail[kMostRanks][kMostRanks]; ///< indexed by sender and receiver
  };
  Exchange(void *memory, int rank, int size);
  uint8_t *place(int rank, uint64_t number) const;
  uint8_t *letter(int sender, int receiver) const;
  Rank &own() const { return shared->ranks[rank]; }
  template <typename Predicate> bool isEach(Predicate predicate) const;

  Shared *shared;
  int rank, size;
};

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_NCCL_EXCHANGE_H
