// SPDX-License-Identifier: MIT

// cache_rows: writes the rows of new tokens to their slots.

#include <algorithm>

#include "runtime/Kernels/Cpu/CacheShape.h"
#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Math/CacheInt8.h"

namespace qlora::cpu::cache_rows {

enum Operand { kX, kSlots, kPositions, kSegments, kCache };

namespace {

struct CacheRows {
  int64_t columns, heads, ldx, cacheRows;
  qlora_dtype from, to;

  void write(const LibraryKernelArgs &args, int64_t token, int64_t row) const;
  void writeHead(const LibraryKernelArgs &args, int64_t token, int64_t row,
                 int64_t head) const;
};

} // namespace

/// Returns the largest magnitude; NaN if any value is NaN.
QLORA_VECTOR static float absmaxOf(const float *x, int64_t count) {
  uint32_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = qlora_to_bits(x[i]) & 0x7fffffffu;
    most = magnitude > most ? magnitude : most;
  }
  return qlora_from_bits(most);
}

QLORA_VECTOR static void encode(const float *__restrict x, int64_t count,
                                float inverse, int8_t *__restrict codes) {
  for (int64_t i = 0; i < count; ++i)
    codes[i] = int8_t(qlora_cache_code(x[i], inverse));
}

/// Writes the codes and the scale of a head to an i8 cache.
void CacheRows::writeHead(const LibraryKernelArgs &args, int64_t token,
                          int64_t row, int64_t head) const {
  constexpr int64_t kRun = 256;
  const int64_t dim = columns / heads;
  const Int8Cache cache =
      Int8Cache::of(args.buffers[kCache], cacheRows, columns);
  float values[kRun];
  const auto load = [&](int64_t done) {
    const int64_t count = std::min(kRun, dim - done);
    widen(from,
          elementAt(args.buffers[kX], from, token * ldx + head * dim + done),
          values, count);
    return count;
  };
  float absmax = 0;
  for (int64_t done = 0; done < dim; done += kRun)
    absmax = qlora_maximum(absmax, absmaxOf(values, load(done)));
  cache.scales[row * heads + head] = qlora_cache_scale(absmax);
  const float inverse = qlora_cache_inverse(absmax);
  for (int64_t done = 0; done < dim; done += kRun)
    encode(values, load(done), inverse,
           cache.codes + (row * heads + head) * dim + done);
}

void CacheRows::write(const LibraryKernelArgs &args, int64_t token,
                      int64_t row) const {
  if (to != QLORA_DTYPE_I8)
    return convertRun(from, elementAt(args.buffers[kX], from, token * ldx), to,
                      elementAt(args.buffers[kCache], to, row * columns),
                      columns);
  for (int64_t head = 0; head < heads; ++head)
    writeHead(args, token, row, head);
}

PreparedKernel cpu::prepare(const KernelRequest &r, uint64_t) {
  const CacheRows rows = {r.constant("columns"),
                          r.constant("heads"),
                          r.constant("ldx"),
                          r.constant("slots") * r.constant("entries"),
                          r.type("x"),
                          r.type("cache")};
  return makeKernel([r, rows](const LibraryKernelArgs &args) {
    const CacheTokens tokens = CacheTokens::of(r, args, kSlots);
    parallelRanges(
        r.constant("rows"), rowGrain(rows.columns),
        [&](int64_t begin, int64_t end) {
          for (int64_t token = begin; token < end; ++token)
            if (!tokens.isPadding(token))
              rows.write(args, token,
                         tokens.rowAt(tokens.slotOf[token],
                                      tokens.positionOf[token]));
        });
    return Status::ok();
  });
}

} // namespace qlora::cpu::cache_rows
