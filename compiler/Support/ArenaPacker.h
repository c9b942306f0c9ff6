// SPDX-License-Identifier: MIT

// Assigns offsets to buffers that live for a range of commands, in one arena
// that is as small as we can make it.
//
// Problem. A buffer is a rectangle: its lifetime [first, last] (commands, both
// ends included) on one axis and its bytes on the other. The lifetimes are
// given. We choose the offset of each rectangle, so that no two overlap and the
// highest edge is low. This is dynamic storage allocation, NP-hard already for
// two sizes (Garey and Johnson, SR2). No packing is lower than the most bytes
// alive at one command. We report this lower bound, and usually reach it.
//
//      offset
//        |
//        +------+-----+
//        |  b   |  c  |    c reuses the bytes of b, which has ended
//        +------+-----+
//        |      a     |
//        +------------+--> command
//
// Prior work. TFLite's greedy_memory_planner and XLA's
// GlobalDecreasingSizeBestFit place the largest rectangle first. Each rectangle
// goes to the tightest gap between placed rectangles that live at the same time
// (Pisarchyk and Lee, 2020). That is strong for inference, where a few huge
// tensors dominate. IREE's LayoutSlices allocates in time order like malloc and
// takes the first gap. That is strong for training, where saved activations are
// a stack: pushed by the forward, popped by the backward.
//
// Method. No order wins everywhere and a packing takes milliseconds, so we try
// several orders and keep the lowest packing. The first two orders are time
// forwards and time backwards, each with the tightest gap. Then, while a work
// budget lasts, buffers are placed by size, by area and by duration. Then the
// best order is improved: the buffers that touch the top move to the front,
// because the greedy order placed them too late. The budget counts steps, never
// seconds, so that the same input gives the same offsets on every machine. The
// search stops when the lower bound is reached.
//
// Limits. The result is not optimal: 2 to 8 % above the bound for random
// rectangles, within 1 % for the steps of training programs. Beyond about
// 20,000 buffers only the two time orders are affordable.

#ifndef QLORA_COMPILER_SUPPORT_ARENAPACKER_H
#define QLORA_COMPILER_SUPPORT_ARENAPACKER_H

#include <cstdint>
#include <span>
#include <vector>

namespace qlora {

/// A buffer to place. `alignment` is a power of two; `first` <= `last`.
struct PackedBuffer {
  int64_t first = 0; ///< first command that uses it
  int64_t last = 0;  ///< last command that uses it, included
  uint64_t bytes = 0;
  uint64_t alignment = 64;
};

struct PackResult {
  std::vector<uint64_t> offsets; ///< one per buffer; 0 for an empty one
  uint64_t bytes = 0;            ///< the highest end: what the arena needs
  uint64_t lowerBound = 0;       ///< most bytes alive at one command
};

/// Places all buffers. Buffers whose lifetimes share a command share no byte.
/// Stops at the first packing of at most `enough` bytes, for an arena that must
/// have that size anyway. Deterministic, thread-safe, and under half a second
/// for 50,000 buffers.
PackResult packArena(std::span<const PackedBuffer> buffers,
                     uint64_t enough = 0);

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_ARENAPACKER_H
