// SPDX-License-Identifier: MIT

// Collects a dump's logits from the blocks that LM heads compute, on all ranks
// that hold a shard of the logits.

#include "runtime/Extras/Dump.h"

#include <algorithm>
#include <limits>

#include "runtime/Kernels/KernelTable.h"

namespace qlora {

/// Merges the values of a group's ranks: at each position, takes a rank's value
/// that is not 0.
static Status join(Collectives &ranks, std::vector<float> &values) {
  QLORA_ASSIGN_OR_RETURN(const std::vector<std::vector<float>> all,
                         ranks.allGatherValues(std::span<const float>(values)));
  for (const std::vector<float> &other : all) {
    values.resize(std::max(values.size(), other.size()));
    for (size_t i = 0; i < other.size(); ++i)
      values[i] = other[i] != 0 ? other[i] : values[i];
  }
  return Status::ok();
}

/// Returns whether a rank's logits include the rows of other ranks. They do if
/// ranks with different rows shard the LM head.
static bool hasRowsOfAll(const LoadedModule &module) {
  return kGroups[shardGroup(module)].rows == RankRows::Own &&
         std::ranges::any_of(module.kernels(), [](const qlora_kernel &kernel) {
           const KernelRow *row = findKernelRow(kernel.name);
           return row && row->op->name == "head_part";
         });
}

int64_t tokenOfRow(int64_t row, const BatchShape &shape, int64_t parts,
                   int64_t first) {
  const int64_t own = shape.batch * shape.length / parts;
  return SequenceShard{(first + row / own) % parts, parts}.placeOf(
      row % own, shape.length);
}

/// Returns the index of the cp shard to which the first rows of this rank's
/// logits belong. It may exceed the number of cp shards: tokenOfRow() takes it
/// modulo that number.
static int64_t firstWithRows(const Run &run) {
  const int64_t part =
      run.group.rank() / run.group.mesh().stride(QLORA_GROUP_CP);
  return hasRowsOfAll(run.module)
             ? part - run.group.collectives(shardGroup(run.module)).rank()
             : part;
}

namespace {
/// Counts the LM heads while their blocks of logits arrive. A new head begins
/// when the row and column indices start again.
struct HeadCount {
  size_t heads = 0;
  int32_t row = -1;
  int64_t word = -1;

  size_t of(const LogitsBlock &block) {
    if (block.rows.front() <= row && block.firstWord <= word)
      ++heads;
    row = block.rows.front();
    word = block.firstWord;
    return heads;
  }
};

/// The pipeline chunks of a micro-batch. Each chunk has a range of every group
/// of sequences. For preference pairs, the chosen and the rejected answers are
/// two groups; otherwise all sequences are one group.
struct ChunkRows {
  int64_t count = 1;
  int64_t runTokens = 1; ///< tokens of a chunk in one group

  static ChunkRows of(const Run &run, const MicroBatch &batch) {
    const auto &recorded = run.options.recordedMetadata("chunks");
    const int64_t count =
        recorded.is_number_integer() ? std::max<int64_t>(1, recorded) : 1;
    return {count, batch.batch * batch.length / count /
                       run.options.linesOfRow()};
  }
  /// Returns the index in the micro-batch of token `token` of chunk `chunk`.
  int64_t tokenOf(int64_t chunk, int64_t token) const {
    return (token / runTokens * count + chunk) * runTokens + token % runTokens;
  }
  /// Combines the heads' logits into the micro-batch's. Each chunk has the same
  /// number of heads. Only the last head counts; earlier heads are the
  /// reference model's.
  std::vector<float> join(const std::vector<std::vector<float>> &heads,
                          int64_t vocabulary) const {
    std::vector<float> logits;
    for (size_t head = 0; head < heads.size(); ++head) {
      const int64_t chunk = static_cast<int64_t>(head) * count /
                            std::ssize(heads);
      logits.resize(
          std::max<size_t>(logits.size(), heads[head].size() * count));
      for (int64_t token = 0; token * vocabulary < std::ssize(heads[head]);
           ++token)
        std::copy_n(heads[head].data() + token * vocabulary, vocabulary,
                    logits.data() + tokenOf(chunk, token) * vocabulary);
    }
    return logits;
  }
};
} // namespace

Status Dump::takeLogits(const Run &run) {
  MicroBatch batch;
  QLORA_RETURN_IF_ERROR(run.train->read(0, 0, run.stepShape, batch));
  // Every position gets a target, so that the head computes every row.
  std::fill(batch.targets.begin(), batch.targets.end(), 0);
  // Attention skips padding. Here padding becomes a separate segment, so that
  // its logits are valid and match PyTorch's.
  std::replace(batch.segments.begin(), batch.segments.end(), 0,
               std::numeric_limits<int32_t>::max());
  std::vector<std::vector<float>> heads; // logits, as executed
  int64_t vocabulary = 0;
  const int64_t shard = run.group.collectives(shardGroup(run.module)).rank();
  const ChunkRows chunks = ChunkRows::of(run, batch);
  const BatchShape shape = {batch.batch / chunks.count, batch.length};
  const int64_t tokens = shape.batch * shape.length;
  HeadCount count;
  const int64_t parts = run.module.contextRanks();
  const int64_t owner = firstWithRows(run);
  run.observer.onLogits = [&](const LogitsBlock &block) {
    vocabulary = block.vocab;
    const size_t head = count.of(block);
    heads.resize(std::max(heads.size(), head + 1));
    heads[head].resize(tokens * vocabulary);
    const int64_t first = block.firstWord + shard * block.piece;
    const int64_t words = std::min(block.words, block.vocab - first);
    for (size_t i = 0; words > 0 && i < block.rows.size(); ++i)
      if (block.rows[i] < tokens)
        std::copy_n(block.logits + i * block.words, words,
                    heads[head].data() + first +
                        vocabulary *
                            tokenOfRow(block.rows[i], shape, parts, owner));
  };
  LossSums sums;
  std::vector<int32_t> correct;
  Status status = run.program.evaluate(batch, std::nullopt, {}, sums, correct);
  run.observer.onLogits = nullptr;
  QLORA_RETURN_IF_ERROR(status);
  std::vector<float> logits = chunks.join(heads, vocabulary);
  if (run.module.meetsInEntries())
    for (const qlora_group group :
         {shardGroup(run.module), QLORA_GROUP_CP, QLORA_GROUP_PP})
      QLORA_RETURN_IF_ERROR(join(run.group.collectives(group), logits));
  vocabulary = std::ssize(logits) / std::ssize(batch.ids);
  add("logits", SafetensorsDtype::kF32, {batch.batch, batch.length, vocabulary},
      {reinterpret_cast<const uint8_t *>(logits.data()),
       logits.size() * sizeof(float)});
  return Status::ok();
}

} // namespace qlora
