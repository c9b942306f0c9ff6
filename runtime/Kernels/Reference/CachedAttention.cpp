// SPDX-License-Identifier: MIT

// Plain cached_attention: a separate f64 sum for each result row.

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/Kernels/Cpu/CacheShape.h"
#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Math/CacheInt8.h"

namespace qlora::cpu {

namespace {

/// One query head of one token.
struct Query {
  const CachedAttentionShape &shape;
  const CacheTokens &tokens;
  const LibraryKernelArgs &args;
  int64_t token, head;

  double keyElement(size_t operand, int64_t position, int64_t i) const {
    const int64_t row = tokens.rowAt(tokens.slotOf[token], position);
    const int64_t from = shape.keyOffset(row, head / shape.group());
    if (shape.cacheType != QLORA_DTYPE_I8)
      return loadElement(shape.cacheType, args.buffers[operand], from + i);
    const Int8Cache cache =
        Int8Cache::of(args.buffers[operand], tokens.slots * tokens.entries,
                      shape.keyHeads * shape.dim);
    return qlora_cache_number(cache.codes[from + i],
                              cache.scales[from / shape.dim]);
  }
  double score(int64_t position) const {
    double sum = 0;
    for (int64_t i = 0; i < shape.dim; ++i)
      sum += double(loadElement(shape.type, args.buffers[kCachedQ],
                                token * shape.ldq + head * shape.dim + i)) *
             keyElement(kCachedKeyRows, position, i);
    const double score = shape.scale * sum;
    return shape.cap == 0 ? score : shape.cap * std::tanh(score / shape.cap);
  }
  void store(int64_t i, double value) const {
    storeElement(shape.type, args.buffers[kCachedOut],
                 token * shape.ldo + head * shape.dim + i, float(value));
  }
};

} // namespace

static void attend(const Query &query) {
  const CachedAttentionShape &shape = query.shape;
  if (query.tokens.isPadding(query.token)) {
    for (int64_t i = 0; i < shape.dim; ++i)
      query.store(i, 0);
    return;
  }
  const int64_t position = query.tokens.positionOf[query.token];
  const int64_t first = std::max(shape.firstKey(position),
                                 position - query.tokens.entries + 1);
  std::vector<double> scores;
  for (int64_t key = first; key <= position; ++key)
    scores.push_back(query.score(key));
  const auto *sinks = bufferOf<const float>(query.args, kCachedSinks);
  if (sinks)
    scores.push_back(sinks[query.head]);
  const double maximum = *std::ranges::max_element(scores);
  double sum = 0;
  for (double &score : scores)
    sum += score = std::exp(score - maximum);
  for (int64_t i = 0; i < shape.dim; ++i) {
    double value = 0;
    for (int64_t key = first; key <= position; ++key)
      value += scores[static_cast<size_t>(key - first)] / sum *
               query.keyElement(kCachedValueRows, key, i);
    query.store(i, value);
  }
}

PreparedKernel cached_attention::reference::prepare(const KernelRequest &r,
                                                    uint64_t) {
  return makeKernel([r, shape = CachedAttentionShape::of(r)](
                        const LibraryKernelArgs &args) {
    const CacheTokens tokens = CacheTokens::of(r, args, kCachedSlots);
    for (int64_t token = 0; token < shape.batch * shape.length; ++token)
      for (int64_t head = 0; head < shape.heads; ++head)
        attend({shape, tokens, args, token, head});
    return Status::ok();
  });
}

} // namespace qlora::cpu
