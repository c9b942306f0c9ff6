// SPDX-License-Identifier: MIT

// cache_rows: writes the rows of new tokens to their slots.

#include "runtime/Kernels/Cpu/CacheShape.h"
#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora::cpu {

PreparedKernel cache_rows::cpu::prepare(const KernelRequest &r, uint64_t) {
  return makeKernel([r](const LibraryKernelArgs &args) {
    const int64_t columns = r.constant("columns"), ldx = r.constant("ldx");
    const CacheTokens tokens = CacheTokens::of(r, args, 1);
    const qlora_dtype from = r.type("x"), to = r.type("cache");
    parallelRanges(
        r.constant("rows"), rowGrain(columns), [&](int64_t begin, int64_t end) {
          for (int64_t token = begin; token < end; ++token) {
            if (tokens.isPadding(token))
              continue;
            const int64_t row =
                tokens.rowAt(tokens.slotOf[token], tokens.positionOf[token]);
            convertRun(from, elementAt(args.buffers[0], from, token * ldx), to,
                       elementAt(args.buffers[4], to, row * columns), columns);
          }
        });
    return Status::ok();
  });
}

} // namespace qlora::cpu
