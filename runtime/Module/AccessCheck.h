// SPDX-License-Identifier: MIT

// Checks that the commands of an entry, in table order, read only written
// bytes, never use memory that another buffer owns, and never race across
// queues. The check is independent of kernels and devices: it sees byte ranges
// and queues, one range per operand. The compiler runs it over its output
// (verify-phase), the null device over a loaded module.
//
// Order. Each queue has a vector clock: its own time, and for each other queue
// the time that has certainly passed there. RECORD saves the clock of its
// queue. WAIT sets its queue's clock to the maximum of that clock and the saved
// one. An access of queue B may be concurrent with a command of queue A if it
// is newer than A's clock says for B. If two concurrent accesses overlap and
// one writes, that is a race.
//
// Owners. A byte belongs to the buffer through which it was written last. Two
// buffers may use the same bytes one after the other. If a buffer is read after
// another buffer has overwritten its bytes, both are in use at once, which is
// an error. In a loaded module, ranges have no buffer numbers, so owners are
// not checked.

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
  uint32_t arena = 0; ///< kind (enum qlora_arena_kind)
  qlora_access access = QLORA_READ;
  uint64_t offset = 0, bytes = 0; ///< bytes 0: an absent operand
  uint32_t buffer = QLORA_NONE;   ///< buffer of the range, or none
};

class AccessCheck {
public:
  /// Resets all state for a new entry with idle queues, after the runtime wrote
  /// `inputs`. These bytes must be written before they are read: other inputs,
  /// activations (also those saved on the host), workspaces and results. All
  /// other arenas hold data of the runtime or other entries.
  void begin(uint32_t eventCount, std::span<const RangeUse> inputs);

  /// Checks the next command of `queue`, which reads before it writes.
  Status access(unsigned queue, std::span<const RangeUse> operands);
  /// Records an event: once per entry, and before its wait in table order.
  Status record(unsigned queue, uint32_t event);
  Status wait(unsigned queue, uint32_t event);

  /// Checks the reads of `results` by the runtime, after all queues have ended.
  Status finish(std::span<const RangeUse> results);

  /// After an ownership error, returns the buffer that overwrote the bytes.
  std::optional<uint32_t> overwriter() const { return lastOverwriter; }

private:
  using Clock = std::array<uint64_t, QLORA_QUEUE_COUNT>;
  struct Access {
    uint64_t begin, end;
    uint64_t time; ///< time of its queue's clock
    bool isWrite;
  };
  struct Owner {
    uint64_t end;
    uint32_t buffer;
  };
  struct Arena {
    std::map<uint64_t, Owner> owners; ///< disjoint ranges, keyed by their begin
    std::array<std::vector<Access>, QLORA_QUEUE_COUNT> accesses;
  };

  Status touch(unsigned queue, const RangeUse &use, bool isWrite);
  Status checkRace(unsigned queue, const Arena &arena,
                   const Access &access) const;
  Status checkOwner(const RangeUse &use);
  void setOwner(const RangeUse &use);

  std::array<Clock, QLORA_QUEUE_COUNT> clocks{};
  std::vector<std::optional<Clock>> events; ///< empty: event not recorded yet
  std::array<Arena, QLORA_ARENA_KIND_COUNT> arenas;
  std::optional<uint32_t> lastOverwriter;
};

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_ACCESSCHECK_H
