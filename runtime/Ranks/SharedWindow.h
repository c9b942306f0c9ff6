// SPDX-License-Identifier: MIT

// Memory that all ranks of a machine have mapped, through which they add up
// data without a copy by the kernel (MPI's "shared window").
//
// A round takes `kCapacity` numbers. Each rank has a slot:
//
//   write        own data into the own slot
//   (all meet)
//   sumPart      part r of all slots, in the order of ranks, into part r of
//                slot 0; rank r does
//   (all meet)
//   read         slot 0
//
// There are two sets of slots in turns: who writes a round's slots has met all
// who had read that set two rounds before. How ranks meet is the caller's
// affair; it must order memory, as a message through the kernel does.

#ifndef QLORA_RUNTIME_RANKS_SHAREDWINDOW_H
#define QLORA_RUNTIME_RANKS_SHAREDWINDOW_H

#include <cstdint>
#include <utility>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/HostMemory.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Movable. One thread at a time.
class SharedWindow {
public:
  /// How many numbers a round takes: 1 MiB, which stays in a core's cache
  /// between a write and the sum.
  static constexpr int64_t kCapacity = 256 * 1024;

  /// The memory, for `map` here and in the other ranks' processes: 2 MiB for
  /// each rank. A rank touches about 6, whatever their number.
  static StatusOr<FileDescriptor> create(int ranks);
  /// `memory` is kept open as long as the window: others may open it through
  /// this process.
  static StatusOr<SharedWindow> map(FileDescriptor memory, int rank, int ranks);

  void write(const float *data, int64_t count);
  /// Elements [begin, end) of the round.
  void sumPart(int64_t begin, int64_t end);
  /// Ends the round.
  void read(float *data, int64_t count);

private:
  SharedWindow(FileDescriptor descriptor, HostMemory memory, int rank,
               int ranks)
      : descriptor(std::move(descriptor)), memory(std::move(memory)),
        rank(rank), ranks(ranks) {}
  float *slot(int ofRank) const;

  FileDescriptor descriptor;
  HostMemory memory;
  int rank;
  int ranks;
  int set = 0; ///< of slots, 0 or 1
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_SHAREDWINDOW_H
