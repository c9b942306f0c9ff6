// SPDX-License-Identifier: MIT

// Finds which blocks of queries and keys attend, and masks partial ones.

#include "runtime/Kernels/Cpu/AttentionShape.h"

#include <limits>

#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora {

static std::pair<int32_t, int32_t> segmentRange(const int32_t *segments,
                                                AttentionBlock block) {
  const auto [least, most] = std::minmax_element(
      segments + block.first, segments + block.first + block.count);
  return {*least, *most};
}

bool AttentionShape::mayMeet(const int32_t *segments, AttentionBlock queries,
                             AttentionBlock keys) const {
  if (keys.first > queries.last() || keys.last() < firstKey(queries.first))
    return false;
  if (!segments)
    return true;
  const auto [queryLeast, queryMost] = segmentRange(segments, queries);
  const auto [keyLeast, keyMost] = segmentRange(segments, keys);
  return queryLeast <= keyMost && keyLeast <= queryMost && queryMost != 0;
}

bool AttentionShape::allMeet(const int32_t *segments, AttentionBlock queries,
                             AttentionBlock keys) const {
  if (keys.last() > queries.first || keys.first < firstKey(queries.last()))
    return false;
  if (!segments)
    return true;
  const auto queryRange = segmentRange(segments, queries);
  return queryRange.first == queryRange.second && queryRange.first != 0 &&
         queryRange == segmentRange(segments, keys);
}

RowView AttentionShape::rows(const BlockProducts &products, const void *matrix,
                             int64_t ld, int64_t batchRow, int64_t head,
                             AttentionBlock block, float *scratch) const {
  const void *first =
      elementAt(matrix, dtype, rowOffset(ld, batchRow, head, block.first));
  if (dtype == QLORA_DTYPE_F32)
    return {first, ld};
  const qlora_dtype to = products.operandType();
  for (int64_t row = 0; row < block.count; ++row)
    convertRun(dtype, elementAt(first, dtype, row * ld), to,
               elementAt(static_cast<void *>(scratch), to, row * dim), dim);
  return {scratch, dim};
}

std::vector<int64_t> AttentionShape::blockSizes(int64_t block) const {
  std::vector<int64_t> sizes = {block};
  if (length % block != 0)
    sizes.push_back(length % block);
  return sizes;
}

QLORA_VECTOR static void maskOthers(const int32_t *segments, int32_t segment,
                                    float *scores, int64_t count) {
  const float masked = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < count; ++i)
    scores[i] = segments[i] == segment ? scores[i] : masked;
}

void maskScores(const AttentionShape &shape, const int32_t *segments,
                AttentionBlock queries, AttentionBlock keys, float *scores) {
  const float masked = -std::numeric_limits<float>::infinity();
  for (int64_t row = 0; row < queries.count; ++row) {
    const int64_t query = queries.first + row;
    float *line = scores + row * keys.count;
    const bool isPadding = segments && segments[query] == 0;
    const int64_t begin =
        std::clamp<int64_t>(shape.firstKey(query) - keys.first, 0, keys.count);
    const int64_t end = isPadding ? begin
                                  : std::clamp<int64_t>(query + 1 - keys.first,
                                                        begin, keys.count);
    std::fill(line, line + begin, masked);
    std::fill(line + end, line + keys.count, masked);
    if (segments)
      maskOthers(segments + keys.first + begin, segments[query], line + begin,
                 end - begin);
  }
}

} // namespace qlora
