// SPDX-License-Identifier: MIT

// cached_attention, blocked: a task is a block of queries, with the query heads
// of one key head. It widens a block of keys and values once for all of them,
// and uses the online softmax of Attention.cpp. Blocks begin at multiples of
// kCachedKeys positions. So a query's sums depend only on its own slot.
// Exponentials are rounded to bf16 where attention rounds them, so that a
// sampled token has the log-probability that training computes.

#include <cmath>
#include <limits>

#include "runtime/Kernels/Cpu/BlockProducts.h"
#include "runtime/Kernels/Cpu/CacheShape.h"
#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Cpu/Softmax.h"
#include "runtime/Kernels/Math/CacheInt8.h"
#include "runtime/Kernels/Plans/Workspaces.h"

namespace qlora::cpu::cached_attention {

using plans::CachedAttentionScratch;
using plans::kCachedKeys;
using plans::kCachedQueries;

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

/// Queries [first, first + count) of all sequences, which have one slot.
struct Queries {
  int64_t first, count;
};

class Task {
public:
  Task(const CachedAttentionShape &shape, const CachedAttentionScratch &scratch,
       const CacheTokens &tokens, const LibraryKernelArgs &args,
       int64_t keyHead, bool rounds, uint8_t *slot)
      : shape(shape), tokens(tokens), args(args), keyHead(keyHead),
        rounds(rounds), queries(scratch.queries.in<float>(slot)),
        outputs(scratch.outputs.in<float>(slot)),
        maxima(scratch.maxima.in<float>(slot)),
        sums(scratch.sums.in<float>(slot)), keys(scratch.keys.in<float>(slot)),
        values(scratch.values.in<float>(slot)),
        scores(scratch.scores.in<float>(slot)),
        rowValues(scratch.rowValues.in<float>(slot)) {}

  void run(Queries block);

private:
  void attend(Queries run);
  void start(Queries run);
  void loadKeys(int64_t slot, int64_t firstKey, int64_t count);
  void loadRow(size_t operand, int64_t from, float *to) const;
  void addKeys(int64_t query, int64_t from, int64_t firstKey, int64_t count);
  void finish(Queries run);
  void clear(int64_t token);
  float *headOf(float *rows, int64_t query, int64_t head) const {
    return rows + (query * shape.group() + head) * shape.dim;
  }

  const CachedAttentionShape &shape;
  const CacheTokens &tokens;
  const LibraryKernelArgs &args;
  int64_t keyHead;
  bool rounds; ///< exponentials, to bf16
  float *queries, *outputs, *maxima, *sums, *keys, *values, *scores, *rowValues;
};

} // namespace

/// Loads the queries, and sets their softmax states: empty, or the sinks.
void Task::start(Queries run) {
  const int64_t group = shape.group(), width = group * shape.dim;
  const auto *sinks = bufferOf<const float>(args, kCachedSinks);
  for (int64_t i = 0; i < run.count; ++i) {
    const int64_t from = (run.first + i) * shape.ldq + keyHead * width;
    widen(shape.type, elementAt(args.buffers[kCachedQ], shape.type, from),
          queries + i * width, width);
    for (int64_t head = 0; head < group; ++head) {
      maxima[i * group + head] = sinks ? sinks[keyHead * group + head] : kNone;
      sums[i * group + head] = sinks ? 1.0f : 0.0f;
    }
  }
  std::fill_n(outputs, run.count * width, 0.0f);
}

void Task::loadKeys(int64_t slot, int64_t firstKey, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t from =
        shape.keyOffset(tokens.rowAt(slot, firstKey + i), keyHead);
    loadRow(kCachedKeyRows, from, keys + i * shape.dim);
    loadRow(kCachedValueRows, from, values + i * shape.dim);
  }
}

QLORA_VECTOR static void decodeCodes(const int8_t *__restrict codes,
                                     float scale, float *__restrict to,
                                     int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    to[i] = qlora_cache_number(codes[i], scale);
}

/// Widens a head of a row of a cache, whose first element is `from`.
void Task::loadRow(size_t operand, int64_t from, float *to) const {
  if (shape.cacheType != QLORA_DTYPE_I8)
    return widen(shape.cacheType,
                 elementAt(args.buffers[operand], shape.cacheType, from), to,
                 shape.dim);
  const Int8Cache cache =
      Int8Cache::of(args.buffers[operand], tokens.slots * tokens.entries,
                    shape.keyHeads * shape.dim);
  decodeCodes(cache.codes + from, cache.scales[from / shape.dim], to,
              shape.dim);
}

QLORA_VECTOR static void roundRun(float *values, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    values[i] = qlora_round_bf16(values[i]);
}

/// Adds the loaded keys [firstKey, firstKey + count) to a query's softmax. The
/// loaded block begins at position `from`.
void Task::addKeys(int64_t query, int64_t from, int64_t firstKey,
                   int64_t count) {
  const int64_t group = shape.group(), dim = shape.dim, skip = firstKey - from;
  for (int64_t head = 0; head < group; ++head)
    for (int64_t i = 0; i < count; ++i)
      scores[head * count + i] =
          shape.scale * dotProduct(headOf(queries, query, head),
                                   keys + (skip + i) * dim, dim);
  if (shape.cap != 0)
    capRun(scores, group * count, shape.cap, nullptr);
  float *shifts = rowValues, *added = shifts + group;
  maximaOfRows(scores, group, count, shifts);
  for (int64_t head = 0; head < group; ++head) {
    float &maximum = maxima[query * group + head];
    float &sum = sums[query * group + head];
    const float larger = std::max(maximum, shifts[head]);
    if (larger != maximum) {
      const float rescale = std::exp(maximum - larger);
      sum *= rescale;
      scaleRun(headOf(outputs, query, head), dim, rescale);
    }
    maximum = shifts[head] = larger;
  }
  exponentiateRows({scores, group, count, shifts, added, scores, nullptr});
  if (rounds)
    roundRun(scores, group * count);
  for (int64_t head = 0; head < group; ++head) {
    sums[query * group + head] += added[head];
    for (int64_t i = 0; i < count; ++i)
      addScaled(scores[head * count + i], QLORA_DTYPE_F32,
                values + (skip + i) * dim, headOf(outputs, query, head), dim);
  }
}

void Task::finish(Queries run) {
  const int64_t group = shape.group(), width = group * shape.dim;
  for (int64_t i = 0; i < run.count; ++i) {
    for (int64_t head = 0; head < group; ++head)
      scaleRun(headOf(outputs, i, head), shape.dim,
               1.0f / sums[i * group + head]);
    const int64_t to = (run.first + i) * shape.ldo + keyHead * width;
    narrow(outputs + i * width, shape.type,
           elementAt(args.buffers[kCachedOut], shape.type, to), width);
  }
}

/// Runs queries that have one slot.
void Task::attend(Queries run) {
  start(run);
  int64_t least = std::numeric_limits<int64_t>::max(), last = 0;
  for (int64_t i = 0; i < run.count; ++i) {
    const int64_t position = tokens.positionOf[run.first + i];
    least = std::min(least, shape.firstKey(position));
    last = std::max(last, position);
  }
  // The cache holds no position below this one any more.
  least = std::max(least, last - tokens.entries + 1);
  for (int64_t from = least / kCachedKeys * kCachedKeys; from <= last;
       from += kCachedKeys) {
    const int64_t begin = std::max(from, least);
    const int64_t end = std::min(from + kCachedKeys, last + 1);
    loadKeys(tokens.slotOf[run.first], begin, end - begin);
    for (int64_t i = 0; i < run.count; ++i) {
      const int64_t position = tokens.positionOf[run.first + i];
      const int64_t own = std::max(begin, shape.firstKey(position));
      const int64_t count = std::min(end, position + 1) - own;
      if (count > 0)
        addKeys(i, begin, own, count);
    }
  }
  finish(run);
}

/// Sets the outputs of a padding token to 0.
void Task::clear(int64_t token) {
  const int64_t width = shape.group() * shape.dim;
  clearRun(shape.type,
           elementAt(args.buffers[kCachedOut], shape.type,
                     token * shape.ldo + keyHead * width),
           width);
}

/// Runs a block in parts that have one slot; padding is cleared.
void Task::run(Queries block) {
  const int64_t end = block.first + block.count;
  for (int64_t first = block.first, next; first < end; first = next) {
    next = first + 1;
    if (tokens.isPadding(first)) {
      clear(first);
      continue;
    }
    while (next < end && !tokens.isPadding(next) &&
           tokens.slotOf[next] == tokens.slotOf[first])
      ++next;
    attend({first, next - first});
  }
}

PreparedKernel blocked::prepare(const KernelRequest &r, uint64_t) {
  const CachedAttentionShape shape = CachedAttentionShape::of(r);
  const CachedAttentionScratch scratch = CachedAttentionScratch::of(r);
  const bool rounds =
      BlockProducts::operandTypeOf(shape.type) == QLORA_DTYPE_BF16;
  return makeKernel([r, shape, scratch, rounds](const LibraryKernelArgs &args) {
    const CacheTokens tokens = CacheTokens::of(r, args, kCachedSlots);
    const int64_t blocks = (shape.length + kCachedQueries - 1) / kCachedQueries;
    // The last blocks see the most keys, so they run first.
    parallelFor(
        shape.batch * shape.keyHeads * blocks, plans::kCachedTasks,
        [&](int64_t index, int64_t slot) {
          const int64_t line = index % (shape.batch * shape.keyHeads);
          const int64_t first =
              (blocks - 1 - index / (shape.batch * shape.keyHeads)) *
              kCachedQueries;
          Task task(shape, scratch, tokens, args, line % shape.keyHeads, rounds,
                    static_cast<uint8_t *>(args.buffers.back()) +
                        slot * int64_t(scratch.slotBytes));
          task.run({line / shape.keyHeads * shape.length + first,
                    std::min(kCachedQueries, shape.length - first)});
        });
    return Status::ok();
  });
}

} // namespace qlora::cpu::cached_attention
