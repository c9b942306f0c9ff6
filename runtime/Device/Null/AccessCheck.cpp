// SPDX-License-Identifier: MIT

// Interval sets and vector clocks.

#include "runtime/Device/Null/AccessCheck.h"

#include "runtime/Module/ModuleLoader.h"

#include <algorithm>

namespace qlora {

void AccessCheck::begin(std::vector<bool> mustBeWritten, uint32_t eventCount) {
  clocks = {};
  events.assign(eventCount, Clock{});
  arenas.assign(mustBeWritten.size(), Arena{});
  for (size_t i = 0; i < arenas.size(); ++i)
    arenas[i].mustBeWritten = mustBeWritten[i];
}

/// The first byte of [begin, end) that no range holds, or end.
uint64_t AccessCheck::firstUnwritten(const Arena &arena, uint64_t begin,
                                     uint64_t end) {
  auto next = arena.written.upper_bound(begin);
  if (next == arena.written.begin())
    return begin;
  // Ranges are merged when they touch, so one holds all of it or none does.
  return std::max(begin, std::min(std::prev(next)->second, end));
}

void AccessCheck::markWritten(Arena &arena, uint64_t begin, uint64_t end) {
  auto next = arena.written.upper_bound(begin);
  if (next != arena.written.begin() && std::prev(next)->second >= begin)
    --next;
  while (next != arena.written.end() && next->first <= end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    next = arena.written.erase(next);
  }
  arena.written.emplace(begin, end);
}

Status AccessCheck::checkRace(unsigned queue, const Arena &arena,
                              const Access &access) const {
  for (unsigned other = 0; other < QLORA_QUEUE_COUNT; ++other) {
    if (other == queue)
      continue;
    const auto &accesses = arena.accesses[other];
    for (auto it = accesses.rbegin();
         it != accesses.rend() && it->time > clocks[queue][other]; ++it) {
      const bool overlaps = it->begin < access.end && access.begin < it->end;
      if (overlaps && (it->isWrite || access.isWrite))
        return Status::error(
            StatusCode::kDataLoss,
            "race: {} bytes {}+{} while the {} queue {} {}+{}, with no event "
            "between them",
            access.isWrite ? "writes" : "reads", access.begin,
            access.end - access.begin, queueName(other),
            it->isWrite ? "writes" : "reads", it->begin, it->end - it->begin);
    }
  }
  return Status::ok();
}

Status AccessCheck::read(unsigned queue, uint32_t arenaIndex, uint64_t offset,
                         uint64_t bytes) {
  if (bytes == 0)
    return Status::ok();
  Arena &arena = arenas[arenaIndex];
  const Access access{offset, offset + bytes, ++clocks[queue][queue], false};
  QLORA_RETURN_IF_ERROR(checkRace(queue, arena, access));
  const uint64_t hole = arena.mustBeWritten
                            ? firstUnwritten(arena, access.begin, access.end)
                            : access.end;
  if (hole < access.end)
    return Status::error(StatusCode::kDataLoss,
                         "reads bytes {}+{}, but byte {} was not written "
                         "before",
                         offset, bytes, hole);
  arena.accesses[queue].push_back(access);
  return Status::ok();
}

Status AccessCheck::write(unsigned queue, uint32_t arenaIndex, uint64_t offset,
                          uint64_t bytes) {
  if (bytes == 0)
    return Status::ok();
  Arena &arena = arenas[arenaIndex];
  const Access access{offset, offset + bytes, ++clocks[queue][queue], true};
  QLORA_RETURN_IF_ERROR(checkRace(queue, arena, access));
  if (arena.mustBeWritten)
    markWritten(arena, access.begin, access.end);
  arena.accesses[queue].push_back(access);
  return Status::ok();
}

void AccessCheck::record(unsigned queue, uint32_t event) {
  events[event] = clocks[queue];
}

void AccessCheck::wait(unsigned queue, uint32_t event) {
  for (unsigned other = 0; other < QLORA_QUEUE_COUNT; ++other)
    clocks[queue][other] = std::max(clocks[queue][other], events[event][other]);
}

} // namespace qlora
