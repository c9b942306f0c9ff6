// SPDX-License-Identifier: MIT

// Memory that the ranks of a communicator share, which are processes of one
// machine. The one that makes the unique id owns it without a name; the id
// says where the others find it, so nothing is left when all are killed.
//
// Every rank has two places for the operands of a collective, since the next
// one may begin before the slowest rank has read this one. A rank that is gone
// is not noticed: what waits for it waits for ever, as on a card.
//
// Calls and collectives are two things: a call that is captured is no
// collective yet, and each launch of its graph is one. NCCL asks that a call be
// captured by all ranks or by none, and that they launch the graphs of the same
// capture together. So ranks tell each other what each of their calls is, and
// each collective says of which call it is.

#ifndef QLORA_TESTS_CUDA_NCCL_EXCHANGE_H
#define QLORA_TESTS_CUDA_NCCL_EXCHANGE_H

#include "runtime/Kernels/Cuda/CudaTypes.h"

#include <atomic>
#include <memory>
#include <string>

namespace qlora::platform {

/// A call of a rank, from 0, as all ranks make it.
struct CollectiveCall {
  uint64_t number = 0;
  bool isCaptured = false;

  bool operator==(const CollectiveCall &) const = default;
  /// "runs its call 3" or "replays what it captured in its call 3".
  std::string text() const;
};

/// What a rank brings to a collective. All but `from` is the same on all.
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
  /// "ncclAllReduce of 64 bytes of type 7".
  std::string text() const;
};

class Exchange {
public:
  static constexpr int kMostRanks = 16;
  static constexpr size_t kMostBytes = size_t{256} << 20;
  static constexpr size_t kMostSent = size_t{4} << 20; ///< to one other rank

  /// The id of a new group, or false.
  static bool create(ncclUniqueId &id);
  /// The group of an id; null where its owner is not there.
  static std::shared_ptr<Exchange> open(const ncclUniqueId &id, int rank,
                                        int size);
  ~Exchange();

  /// Tells the others that this rank is there, with its card and its host (any
  /// number that ranks of one host have in common); why not, or "".
  std::string join(int device, uint64_t host);
  bool haveAllJoined() const;
  /// Another rank on the same card of the same host, or -1.
  int rankOnSameCard() const;
  /// Whether a rank is on another host.
  bool hasOtherHost() const;

  /// What this rank says of a split: its colour, its key, and the id of a new
  /// group, which that of the first of its colour is for.
  struct Split {
    int color = 0, key = 0;
    ncclUniqueId id{};
  };
  /// False where this rank has said as much before, and somebody has not.
  bool offer(const Split &split);
  /// Whether all have said it as often as this rank.
  bool haveAllOffered() const;
  /// The new group of this rank's colour, and who this rank is in it.
  struct Part {
    ncclUniqueId id{};
    int rank = 0, size = 0;
  };
  Part partOf() const;

  /// Tells the others that this rank makes a call.
  void enter(const CollectiveCall &call);
  /// Whether all others have made that call.
  bool haveAllEntered(uint64_t number) const;
  /// "" or which rank runs directly what this one captures, or, where
  /// this rank's card has run all of its `done` collectives, which rank has
  /// gone on to the next one without the capture: the two would never meet.
  std::string objectionToCapture(const CollectiveCall &call, uint64_t done,
                                 bool isIdle) const;

  /// Puts operands of the collective with that number in place; false while
  /// the place is in use by a rank that is two behind.
  bool publish(uint64_t number, const CollectiveCall &call,
               const Operands &operands);
  bool haveAllPublished(uint64_t number) const;
  /// "" or which rank's call or operands are others than this one's.
  std::string objectionTo(uint64_t number) const;
  /// This rank's result; sums are in the order of the ranks.
  void finish(uint64_t number, const Operands &operands, void *to);

  /// Leaves bytes for a rank; false while it has not taken those before.
  bool send(int peer, const void *from, size_t bytes);
  /// Whether a rank has left as many bytes: -1 where others.
  int hasSent(int peer, size_t bytes) const;
  void receive(int peer, void *to);

  /// This rank does nothing any more; whether that is so for all.
  void finish();
  bool haveAllFinished() const;

private:
  static constexpr size_t kMostCallsAhead = 256;
  struct Rank {
    std::atomic<int> joined; ///< its card + 1
    std::atomic<int> size;   ///< of the group, as it was told
    std::atomic<uint64_t> host;
    std::atomic<bool> hasFinished;
    std::atomic<uint64_t> offered; ///< splits
    Split splits[2];
    std::atomic<uint64_t> published, finished; ///< collectives
    Operands operands[2];
    CollectiveCall calls[2];
    /// Of each call its number + 1, doubled, and whether it is captured. A
    /// rank that is a whole ring ahead has not captured it: it would wait.
    std::atomic<uint64_t> entered[kMostCallsAhead];
  };
  /// From one rank to another: what it holds is sent, but not yet received.
  struct Mailbox {
    std::atomic<uint64_t> sent, received;
    size_t bytes;
  };
  struct Shared {
    Rank ranks[kMostRanks];
    Mailbox mail[kMostRanks][kMostRanks]; ///< by sender and receiver
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
