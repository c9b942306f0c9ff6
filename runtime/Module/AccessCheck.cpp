// SPDX-License-Identifier: MIT

// Checks with interval maps (owners) and vector clocks (races).

#include "runtime/Module/AccessCheck.h"

#include "runtime/Module/ModuleLoader.h"

#include <algorithm>

namespace qlora {

/// Whether an entry must write bytes of this arena before it reads them.
static bool startsEmpty(uint32_t arena) {
  return arena == QLORA_ARENA_ACTIVATION || arena == QLORA_ARENA_WORKSPACE ||
         arena == QLORA_ARENA_INPUT || arena == QLORA_ARENA_RESULT ||
         arena == QLORA_ARENA_SAVED;
}

/// Returns the buffer of `use` in arenas whose bytes several buffers reuse. In
/// other arenas, returns QLORA_NONE: buffers there only name ranges.
static uint32_t ownerOf(const RangeUse &use) {
  return use.arena == QLORA_ARENA_ACTIVATION ||
                 use.arena == QLORA_ARENA_WORKSPACE ||
                 use.arena == QLORA_ARENA_SAVED
             ? use.buffer
             : QLORA_NONE;
}

void AccessCheck::begin(uint32_t eventCount, std::span<const RangeUse> inputs) {
  clocks = {};
  events.assign(eventCount, std::nullopt);
  arenas = {};
  lastOverwriter.reset();
  for (const RangeUse &input : inputs)
    setOwner(input);
}

void AccessCheck::setOwner(const RangeUse &use) {
  std::map<uint64_t, Owner> &owners = arenas[use.arena].owners;
  const uint64_t begin = use.offset, end = begin + use.bytes;
  // Split existing ranges at the new range's begin and end.
  for (uint64_t at : {begin, end}) {
    auto next = owners.lower_bound(at);
    if (next == owners.begin() || std::prev(next)->second.end <= at)
      continue;
    Owner &owner = std::prev(next)->second;
    owners.emplace_hint(next, at, owner);
    owner.end = at;
  }
  owners.erase(owners.lower_bound(begin), owners.lower_bound(end));
  owners.emplace(begin, Owner{end, ownerOf(use)});
}

/// Checks that the buffer of `use` was the last to write each of its bytes.
Status AccessCheck::checkOwner(const RangeUse &use) {
  const std::map<uint64_t, Owner> &owners = arenas[use.arena].owners;
  for (uint64_t at = use.offset, end = at + use.bytes; at < end;) {
    auto next = owners.upper_bound(at);
    if (next == owners.begin() || std::prev(next)->second.end <= at)
      return Status::dataLoss(
          "reads bytes {}+{}, but byte {} was not written before", use.offset,
          use.bytes, at);
    const Owner &owner = std::prev(next)->second;
    if (owner.buffer != ownerOf(use)) {
      lastOverwriter = owner.buffer;
      return Status::dataLoss(
          "reads bytes {}+{}, but another buffer was written to byte {} since",
          use.offset, use.bytes, at);
    }
    at = owner.end;
  }
  return Status::ok();
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
        return Status::dataLoss(
            "race: {} bytes {}+{} while the {} queue {} {}+{}, with no event "
            "between them",
            access.isWrite ? "writes" : "reads", access.begin,
            access.end - access.begin, queueName(other),
            it->isWrite ? "writes" : "reads", it->begin, it->end - it->begin);
    }
  }
  return Status::ok();
}

Status AccessCheck::touch(unsigned queue, const RangeUse &use, bool isWrite) {
  Arena &arena = arenas[use.arena];
  const Access access{use.offset, use.offset + use.bytes,
                      ++clocks[queue][queue], isWrite};
  QLORA_RETURN_IF_ERROR(checkRace(queue, arena, access));
  if (isWrite)
    setOwner(use);
  else if (startsEmpty(use.arena))
    QLORA_RETURN_IF_ERROR(checkOwner(use));
  arena.accesses[queue].push_back(access);
  return Status::ok();
}

Status AccessCheck::access(unsigned queue, std::span<const RangeUse> operands) {
  for (qlora_access kind : {QLORA_READ, QLORA_WRITE})
    for (size_t i = 0; i < operands.size(); ++i) {
      const RangeUse &use = operands[i];
      if (use.bytes == 0 || !(use.access & kind))
        continue;
      if (Status status = touch(queue, use, kind == QLORA_WRITE);
          !status.isOk())
        return status.withContext(fmt::format("operand {} in the {} arena", i,
                                              arenaKindName(use.arena)));
    }
  return Status::ok();
}

Status AccessCheck::record(unsigned queue, uint32_t event) {
  if (event >= events.size())
    return Status::dataLoss("event {} of {}", event, events.size());
  if (events[event])
    return Status::dataLoss("event {} is recorded twice", event);
  events[event] = clocks[queue];
  return Status::ok();
}

Status AccessCheck::wait(unsigned queue, uint32_t event) {
  if (event >= events.size() || !events[event])
    return Status::dataLoss("event {} is waited for before it is recorded",
                            event);
  for (unsigned other = 0; other < QLORA_QUEUE_COUNT; ++other)
    clocks[queue][other] =
        std::max(clocks[queue][other], (*events[event])[other]);
  return Status::ok();
}

Status AccessCheck::finish(std::span<const RangeUse> results) {
  for (const RangeUse &result : results)
    if (Status status = checkOwner(result); !status.isOk())
      return status.withContext(
          fmt::format("result in the {} arena", arenaKindName(result.arena)));
  return Status::ok();
}

} // namespace qlora
