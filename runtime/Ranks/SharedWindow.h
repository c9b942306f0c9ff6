// SPDX-License-Identifier: MIT

// Memory that all ranks of a machine map, for sums and all-gathers without
// copies by the kernel (MPI's "shared window").
//
// A round takes at most `kCapacity` bytes per rank. Each rank has a slot:
//
//   sum                                        all-gather
//   write      own data to the own slot        write    own shard
//   (barrier)                                  (barrier)
//   sumPart    rank r sums range r of all      read     the others' slots
//              slots, in rank order, into      finish
//              range r of slot 0
//   (barrier)
//   read       slot 0
//   finish
//
// Rounds alternate between two sets of slots. So the barrier of the next round
// separates a rank's reads of a set from later writes to the same set. The
// caller's barrier must order memory, as a message through the kernel does.

#ifndef QLORA_RUNTIME_RANKS_SHAREDWINDOW_H
#define QLORA_RUNTIME_RANKS_SHAREDWINDOW_H

#include <cstdint>
#include <span>
#include <utility>

#include "runtime/ABI/kernel.h"
#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/HostMemory.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// sum[i] += addend[i], rounded to the dtype: f32, bf16, f16, or wrapping i32.
void addElements(qlora_dtype dtype, uint8_t *sum, const uint8_t *addend,
                 size_t bytes);

/// Movable. Used by one thread at a time.
class SharedWindow {
public:
  /// Bytes per rank and round. They stay in a core's cache until summed.
  static constexpr size_t kCapacity = 1 << 20;

  /// Creates the memory that all ranks map(): two slots of 1 MiB per rank. Each
  /// process touches about 6 MiB of this memory in sums, for any number of
  /// ranks, and the complete memory in all-gathers.
  static StatusOr<FileDescriptor> create(int ranks);
  static StatusOr<SharedWindow> map(const FileDescriptor &memory, int rank,
                                    int ranks);

  static uint64_t bytesFor(int ranks);

  void write(std::span<const uint8_t> data);
  /// Sums bytes [begin, end) of the round, which are whole elements.
  void sumPart(qlora_dtype dtype, size_t begin, size_t end);
  /// Reads the first bytes of a slot.
  void read(int ofRank, std::span<uint8_t> data) const;
  /// Ends the round.
  void finish() { set = (set + 1) % kSets; }

private:
  SharedWindow(HostMemory memory, int rank, int ranks)
      : memory(std::move(memory)), rank(rank), ranks(ranks) {}
  uint8_t *slot(int ofRank) const;

  static constexpr int kSets = 2;

  HostMemory memory;
  int rank;
  int ranks;
  int set = 0; ///< index of the current set of slots
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_SHAREDWINDOW_H
