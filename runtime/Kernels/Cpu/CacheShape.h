// SPDX-License-Identifier: MIT

// Common code of cache_rows and cached_attention: which row of a cache a token
// has, and which tokens a query sees.

#ifndef QLORA_RUNTIME_KERNELS_CPU_CACHESHAPE_H
#define QLORA_RUNTIME_KERNELS_CPU_CACHESHAPE_H

#include <algorithm>

#include "runtime/Kernels/Cpu/CpuKernels.h"

namespace qlora {

/// Slots and positions of an entry's tokens. The pointers are operands.
struct CacheTokens {
  int64_t slots, entries;
  const int32_t *slotOf = nullptr, *positionOf = nullptr, *segmentOf = nullptr;

  /// Reads the operands from index `first` on: slots, positions, segments.
  static CacheTokens of(const KernelRequest &r, const LibraryKernelArgs &args,
                        size_t first) {
    return {r.constant("slots"), r.constant("entries"),
            bufferOf<const int32_t>(args, first),
            bufferOf<const int32_t>(args, first + 1),
            bufferOf<const int32_t>(args, first + 2)};
  }

  bool isPadding(int64_t token) const {
    return segmentOf[token] == 0 || slotOf[token] < 0 ||
           slotOf[token] >= slots || positionOf[token] < 0;
  }
  /// Returns the row, in a cache of [slots * entries] rows, of a position.
  int64_t rowAt(int64_t slot, int64_t position) const {
    return slot * entries + position % entries;
  }
};

/// Operand indices of cached_attention; the workspace is the last operand.
enum CachedAttentionOperand {
  kCachedQ,
  kCachedKeyRows,
  kCachedValueRows,
  kCachedSlots,
  kCachedPositions,
  kCachedSegments,
  kCachedOut,
  kCachedSinks
};

/// Extents of cached_attention.
struct CachedAttentionShape {
  int64_t batch, length, heads, keyHeads, dim, ldq, ldo, window;
  float scale, cap;
  qlora_dtype type, cacheType;

  static CachedAttentionShape of(const KernelRequest &r) {
    return {r.constant("batch"),
            r.constant("length"),
            r.constant("heads"),
            r.constant("kv_heads"),
            r.constant("dim"),
            r.constant("ldq"),
            r.constant("ldo"),
            r.constant("window"),
            static_cast<float>(r.constantAsDouble("scale")),
            static_cast<float>(r.constantAsDouble("cap")),
            r.type("q"),
            r.type("keys")};
  }
  int64_t group() const { return heads / keyHeads; }
  /// Returns the first position that a query at `position` sees.
  int64_t firstKey(int64_t position) const {
    return window == 0 ? 0 : std::max<int64_t>(0, position - window + 1);
  }
  /// Returns the index of the first element of a head in a row of a cache.
  int64_t keyOffset(int64_t row, int64_t keyHead) const {
    return (row * keyHeads + keyHead) * dim;
  }
};

/// The codes and the scales of an i8 cache of `rows` rows (Math/CacheInt8.h).
struct Int8Cache {
  int8_t *codes;
  float *scales;

  static Int8Cache of(void *cache, int64_t rows, int64_t columns) {
    auto *const codes = static_cast<int8_t *>(cache);
    return {codes, reinterpret_cast<float *>(codes + rows * columns)};
  }
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_CACHESHAPE_H
