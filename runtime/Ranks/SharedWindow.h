// SPDX-License-Identifier: MIT

// Memory that all ranks of a machine have mapped, through which they add up
// and gather data without a copy by the kernel (MPI's "shared window").
//
// A round takes `kCapacity` bytes of each rank, which has a slot:
//
//   a sum                                      pieces
//   write      own data into the own slot      write    own piece
//   (all meet)                                 (all meet)
//   sumPart    part r of all slots, in the     read     the others' slots
//              order of ranks, into part r of  finish
//              slot 0; rank r does
//   (all meet)
//   read       slot 0
//   finish
//
// There are two sets of slots in turns: who writes a round's slots has met all
// who had read that set two rounds before. How ranks meet is the caller's
// affair; it must order memory, as a message through the kernel does.

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

/// sum[i] += addend[i], rounded to the dtype: f32, bf16, f16 or i32, which
/// wraps.
void addElements(qlora_dtype dtype, uint8_t *sum, const uint8_t *addend,
                 size_t bytes);

/// Movable. One thread at a time.
class SharedWindow {
public:
  /// How many bytes a round takes: they stay in a core's cache between a write
  /// and the sum.
  static constexpr size_t kCapacity = 1 << 20;

  /// The memory, for `map` here and in the other ranks' processes: 2 MiB for
  /// each rank. A rank that adds up touches about 6, whatever their number;
  /// one that gathers touches all.
  static StatusOr<FileDescriptor> create(int ranks);
  static StatusOr<SharedWindow> map(const FileDescriptor &memory, int rank,
                                    int ranks);

  static uint64_t bytesFor(int ranks);

  void write(std::span<const uint8_t> data);
  /// Bytes [begin, end) of the round, which are whole elements.
  void sumPart(qlora_dtype dtype, size_t begin, size_t end);
  /// The first bytes of a slot.
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
  int set = 0; ///< of slots, below kSets
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_SHAREDWINDOW_H
