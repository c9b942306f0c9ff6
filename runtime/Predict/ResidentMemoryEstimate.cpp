// SPDX-License-Identifier: MIT

// Maps steps to entries, and entries to pages.

#include "runtime/Predict/ResidentMemoryEstimate.h"

#include <algorithm>
#include <vector>

namespace qlora {

void ResidentMemoryEstimate::add(qlora_entry_kind kind,
                                 const BatchShape &shape) {
  if (const qlora_entry *entry = module.entry(kind, shape.batch, shape.length))
    entries.insert(entry);
}

void ResidentMemoryEstimate::addAll(qlora_entry_kind kind) {
  for (const qlora_entry &entry : module.entries())
    if (entry.kind == kind)
      entries.insert(&entry);
}

void ResidentMemoryEstimate::addTraining(Schedule &schedule,
                                         const StepShape &shape,
                                         int64_t steps) {
  if (steps > 0)
    addAll(QLORA_ENTRY_UPDATE);
  if (steps > kWalkedMicroBatches / shape.count()) {
    addAll(QLORA_ENTRY_ACCUMULATE);
    addAll(QLORA_ENTRY_ACCUMULATE_LAST);
    return;
  }
  // Add each shape once: millions of micro-batches have few shapes.
  std::set<std::pair<qlora_entry_kind, BatchShape>> seen;
  for (int64_t step = 0; step < steps; ++step) {
    const MicroBatchAssignment deal = schedule.deal(step, shape);
    for (int64_t k = 0; k < deal.size(rank); ++k)
      seen.emplace(k + 1 == deal.size(rank) ? QLORA_ENTRY_ACCUMULATE_LAST
                                            : QLORA_ENTRY_ACCUMULATE,
                   schedule.at(step, deal.number(rank, k), shape).shape);
  }
  for (const auto &[kind, batch] : seen)
    add(kind, batch);
}

void ResidentMemoryEstimate::addEvaluation(Schedule &schedule,
                                           const StepShape &shape) {
  const int64_t count = schedule.countInOrder();
  // In lockstep, a rank also runs the rounds in which it has only padding.
  for (int64_t round = 0; round * shape.ranks < count; ++round)
    if (const int64_t number = round * shape.ranks + rank;
        shape.inLockstep || number < count)
      add(QLORA_ENTRY_EVALUATE, schedule.inOrder(number, shape).shape);
}

void ResidentMemoryEstimate::addGeneration() {
  addAll(QLORA_ENTRY_PREFILL);
  addAll(QLORA_ENTRY_DECODE);
}

namespace {
/// The pages of every arena, touched or not.
class PageMap {
public:
  explicit PageMap(const LoadedModule &module) : module(module) {
    for (const qlora_arena &arena : module.arenas()) {
      const bool isFilled =
          isFrozenArena(arena.kind) || arena.kind == QLORA_ARENA_TRAINABLE ||
          arena.kind == QLORA_ARENA_ROUNDED;
      pages.emplace_back((arena.bytes + kPageBytes - 1) / kPageBytes, isFilled);
    }
  }

  void touch(uint32_t arena, uint64_t offset, uint64_t bytes) {
    if (bytes == 0)
      return;
    const auto begin = pages[arena].begin();
    std::fill(begin + static_cast<int64_t>(offset / kPageBytes),
              begin + static_cast<int64_t>((offset + bytes - 1) / kPageBytes) +
                  1,
              true);
  }

  uint64_t bytes() const {
    uint64_t total = 0;
    for (size_t arena = 0; arena < pages.size(); ++arena)
      for (size_t page = 0; page < pages[arena].size(); ++page)
        if (pages[arena][page])
          total += std::min(kPageBytes, module.arenas()[arena].bytes -
                                            page * kPageBytes);
    return total;
  }

private:
  static constexpr uint64_t kPageBytes = ResidentMemoryEstimate::kPageBytes;

  const LoadedModule &module;
  std::vector<std::vector<bool>> pages;
};
} // namespace

uint64_t ResidentMemoryEstimate::bytes() const {
  PageMap map(module);
  for (const qlora_entry *entry : entries) {
    for (const qlora_binding &binding : module.bindings(*entry))
      map.touch(binding.arena, binding.offset, binding.bytes);
    for (const qlora_command &command : module.commands(*entry))
      for (const qlora_operand &operand : module.operands(command))
        map.touch(operand.arena, operand.offset, operand.bytes);
  }
  return map.bytes();
}

uint64_t ResidentMemoryEstimate::untouchedBytes() const {
  uint64_t arenas = 0;
  for (const qlora_arena &arena : module.arenas())
    arenas += arena.bytes;
  return arenas - bytes();
}

} // namespace qlora
