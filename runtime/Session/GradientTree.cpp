// SPDX-License-Identifier: MIT

// Sums micro-batches to leaves, adds pairs of sums, and sums over the ranks.

#include "runtime/Session/GradientTree.h"

#include <algorithm>
#include <bit>

#include "runtime/Options/ParallelMesh.h"

namespace qlora {

Status checkReproducible(const Options &options, const LoadedModule &module,
                         int ranks) {
  if (!options.boolean("reproducible_reductions"))
    return Status::ok();
  QLORA_RETURN_IF_ERROR(GradientTree::check(module, ranks));
  const std::string hook = options.text("ddp_comm_hook");
  if (hook == "no")
    return Status::ok();
  return Status::invalid(
      "--reproducible-reductions needs uncompressed gradients, but '{}' was "
      "compiled with --ddp-comm-hook {}. Fix: compile without it",
      module.path(), hook);
}

int64_t leafLength(int64_t count) {
  return count >> std::countr_zero(static_cast<uint64_t>(count));
}

std::vector<int64_t> turnsOf(int64_t count) {
  const int64_t leaf = leafLength(count), classes = count / leaf;
  const int bits = std::countr_zero(static_cast<uint64_t>(classes));
  std::vector<int64_t> turns;
  for (int64_t number = 0; number < classes; ++number) {
    int64_t first = 0; // the reversed bits of the turn
    for (int bit = 0; bit < bits; ++bit)
      first |= (number >> bit & 1) << (bits - 1 - bit);
    for (int64_t member = 0; member < leaf; ++member)
      turns.push_back(first + member * classes);
  }
  return turns;
}

GradientTree::GradientTree(int64_t count, const LoadedModule &module,
                           Device &device, RankGroup &group)
    : count(count), leaf(leafLength(count)), device(device),
      ranks(group.collectives()), arena(*module.arena(QLORA_ARENA_GRADIENT)),
      elements(module.arenaBytes(QLORA_ARENA_GRADIENT) / sizeof(float)) {}

Status GradientTree::check(const LoadedModule &module, int ranks) {
  if (!std::has_single_bit(static_cast<unsigned>(ranks)))
    return Status::invalid("--reproducible-reductions needs a power of two as "
                           "the number of ranks, not {}. Fix: start {}",
                           ranks, std::bit_floor(static_cast<unsigned>(ranks)));
  if (meetsInMicroBatches(module.table().mesh)) {
    ParallelMesh mesh(module.table().mesh);
    mesh.zero1 = 1; // shards updates, which follow the reduction
    return Status::invalid(
        "--reproducible-reductions needs ranks that each compute the gradients "
        "of whole rows, but '{}' was compiled with --parallel {}. Fix: compile "
        "without it",
        module.path(), mesh.text());
  }
  return Status::ok();
}

uint64_t GradientTree::pendingBytes(int64_t count, const LoadedModule &module,
                                    int ranks) {
  const auto levels = static_cast<uint64_t>(
      std::countr_zero(static_cast<uint64_t>(count)));
  // endTurn() needs the current and the pending sums, finish() two buffers.
  const uint64_t sums = levels + 1, exchanged = ranks > 1 ? 2 : 0;
  return std::max(levels > 0 ? sums : 0, exchanged) *
         module.arenaBytes(QLORA_ARENA_GRADIENT);
}

static std::span<uint8_t> bytesOf(std::span<float> values) {
  return {reinterpret_cast<uint8_t *>(values.data()), values.size_bytes()};
}
static std::span<const uint8_t> bytesOf(std::span<const float> values) {
  return {reinterpret_cast<const uint8_t *>(values.data()),
          values.size_bytes()};
}

static void addTo(std::span<float> sum, std::span<const float> other) {
  for (size_t i = 0; i < sum.size(); ++i)
    sum[i] += other[i];
}

Status GradientTree::take(std::vector<float> &values) {
  values.resize(elements);
  return device.read(arena, 0, bytesOf(std::span(values)));
}

Status GradientTree::put(std::span<const float> values) {
  return device.write(arena, 0, bytesOf(values));
}

Status GradientTree::endTurn() {
  if (++turns % leaf != 0 || count == leaf)
    return Status::ok();
  Sum sum{1, {}};
  QLORA_RETURN_IF_ERROR(take(sum.values));
  while (!pending.empty() && pending.back().leaves == sum.leaves) {
    addTo(pending.back().values, sum.values);
    sum = std::move(pending.back());
    sum.leaves *= 2;
    pending.pop_back();
  }
  pending.push_back(std::move(sum));
  // The next leaf starts at zero.
  return turns < count ? put(std::vector<float>(elements)) : Status::ok();
}

/// Sums the N ranks' values of one shard, stored one after the other, into the
/// first.
static void sumPieces(std::span<float> pieces, size_t length) {
  // Ranks r and r + N / 2 are in the residue class r modulo N / 2.
  for (size_t half = pieces.size() / length / 2; half > 0; half /= 2)
    for (size_t rank = 0; rank < half; ++rank)
      addTo(pieces.subspan(rank * length, length),
            pieces.subspan((rank + half) * length, length));
}

Status GradientTree::sumOverRanks(std::vector<float> &values) {
  const auto size = static_cast<size_t>(ranks.size());
  const size_t length = (elements + size - 1) / size;
  values.resize(length * size);
  std::vector<float> pieces(values.size());
  CollectiveCall call;
  call.kind = QLORA_COLLECTIVE_ALL_TO_ALL;
  call.to = bytesOf(std::span(pieces));
  call.from = bytesOf(std::span<const float>(values));
  QLORA_RETURN_IF_ERROR(ranks.run(call));
  sumPieces(pieces, length);
  call.kind = QLORA_COLLECTIVE_ALL_GATHER;
  call.to = bytesOf(std::span(values));
  call.from = bytesOf(std::span<const float>(pieces).first(length));
  QLORA_RETURN_IF_ERROR(ranks.run(call));
  values.resize(elements);
  return Status::ok();
}

Status GradientTree::finish() {
  std::vector<float> values;
  if (pending.empty())
    QLORA_RETURN_IF_ERROR(take(values));
  else
    values = std::move(pending.front().values);
  pending.clear();
  if (ranks.size() > 1)
    QLORA_RETURN_IF_ERROR(sumOverRanks(values));
  else if (count == leaf)
    return Status::ok(); // the arena already has the sum
  return put(values);
}

} // namespace qlora
