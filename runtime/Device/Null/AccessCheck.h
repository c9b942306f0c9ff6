// SPDX-License-Identifier: MIT

// Whether the commands of an entry, in table order, read only what was
// written and never race across queues. Knows ranges of bytes and queues,
// nothing of kernels; granularity is the operand.
//
// Order. Each queue has a vector clock: its own time, and the times of the
// other queues that it knows to have passed. RECORD keeps the clock of its
// queue, WAIT takes the maximum with it. An access of another queue that is
// newer than what the clock knows may happen at the same time; if the two
// overlap and one writes, that is a race.

#ifndef QLORA_RUNTIME_DEVICE_NULL_ACCESSCHECK_H
#define QLORA_RUNTIME_DEVICE_NULL_ACCESSCHECK_H

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "runtime/ABI/module.h"
#include "runtime/Base/Status.h"

namespace qlora {

class AccessCheck {
public:
  /// Forgets everything: a new entry with idle queues. Reads of the arenas
  /// marked in `mustBeWritten` need a write before them in this entry.
  void begin(std::vector<bool> mustBeWritten, uint32_t eventCount);

  /// The next command of `queue` touches these bytes. A command makes all
  /// its reads before all its writes, so report them in that order.
  Status read(unsigned queue, uint32_t arena, uint64_t offset, uint64_t bytes);
  Status write(unsigned queue, uint32_t arena, uint64_t offset, uint64_t bytes);
  void record(unsigned queue, uint32_t event);
  void wait(unsigned queue, uint32_t event);

private:
  using Clock = std::array<uint64_t, QLORA_QUEUE_COUNT>;
  struct Access {
    uint64_t begin, end;
    uint64_t time; ///< of its queue
    bool isWrite;
  };
  struct Arena {
    bool mustBeWritten = false;
    std::map<uint64_t, uint64_t> written; ///< disjoint ranges, begin -> end
    std::array<std::vector<Access>, QLORA_QUEUE_COUNT> accesses;
  };

  Status checkRace(unsigned queue, const Arena &arena,
                   const Access &access) const;
  static uint64_t firstUnwritten(const Arena &arena, uint64_t begin,
                                 uint64_t end);
  static void markWritten(Arena &arena, uint64_t begin, uint64_t end);

  std::array<Clock, QLORA_QUEUE_COUNT> clocks{};
  std::vector<Clock> events;
  std::vector<Arena> arenas;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_NULL_ACCESSCHECK_H
