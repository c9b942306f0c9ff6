// SPDX-License-Identifier: MIT

// Whether the commands of an entry, in table order, read only what was written,
// never use memory that somebody else has, and never race across queues. Knows
// ranges of bytes and queues, nothing of kernels or devices; granularity is the
// operand. The compiler runs it over what it is about to write (verify-phase),
// the null device over a loaded module.
//
// Order. Each queue has a vector clock: its own time, and the times of the
// other queues that it knows to have passed. RECORD keeps the clock of its
// queue, WAIT takes the maximum with it. An access of another queue that is
// newer than what the clock knows may happen at the same time; if the two
// overlap and one writes, that is a race.
//
// Owners. A byte belongs to the buffer through which it was written last. Two
// buffers may have the same bytes one after the other; where one is read after
// the other was written, both live at the same time. A module has ranges and no
// buffers any more: without their numbers this is not checked.

#ifndef QLORA_RUNTIME_MODULE_ACCESSCHECK_H
#define QLORA_RUNTIME_MODULE_ACCESSCHECK_H

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "runtime/ABI/module.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// A range of an arena that a command touches.
struct RangeUse {
  uint32_t arena = 0; ///< enum qlora_arena_kind
  qlora_access access = QLORA_READ;
  uint64_t offset = 0, bytes = 0; ///< 0: an absent operand
  uint32_t buffer = QLORA_NONE;   ///< number of the buffer it is a part of
};

class AccessCheck {
public:
  /// Forgets everything: a new entry with idle queues, for which the runtime
  /// has written `inputs`. Activations, workspaces, results and the rest of the
  /// inputs hold nothing; other arenas what the runtime or earlier entries
  /// wrote.
  void begin(uint32_t eventCount, std::span<const RangeUse> inputs);

  /// The next command of `queue`, with its operands. It makes all its reads
  /// before all its writes.
  Status access(unsigned queue, std::span<const RangeUse> operands);
  /// An event is recorded once, and before (in table order) it is waited for.
  Status record(unsigned queue, uint32_t event);
  Status wait(unsigned queue, uint32_t event);

  /// All queues have ended, and the runtime reads what the entry wrote.
  Status finish(std::span<const RangeUse> results);

  /// After an error about owners: the buffer that was written since.
  std::optional<uint32_t> overwriter() const { return lastOverwriter; }

private:
  using Clock = std::array<uint64_t, QLORA_QUEUE_COUNT>;
  struct Access {
    uint64_t begin, end;
    uint64_t time; ///< of its queue
    bool isWrite;
  };
  struct Owner {
    uint64_t end;
    uint32_t buffer;
  };
  struct Arena {
    std::map<uint64_t, Owner> owners; ///< of disjoint ranges, by their begin
    std::array<std::vector<Access>, QLORA_QUEUE_COUNT> accesses;
  };

  Status touch(unsigned queue, const RangeUse &use, bool isWrite);
  Status checkRace(unsigned queue, const Arena &arena,
                   const Access &access) const;
  Status checkOwner(const RangeUse &use);
  void setOwner(const RangeUse &use);

  std::array<Clock, QLORA_QUEUE_COUNT> clocks{};
  std::vector<std::optional<Clock>> events; ///< those that were recorded
  std::array<Arena, QLORA_ARENA_KIND_COUNT> arenas;
  std::optional<uint32_t> lastOverwriter;
};

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_ACCESSCHECK_H
