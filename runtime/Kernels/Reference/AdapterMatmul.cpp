// SPDX-License-Identifier: MIT

// Plain adapter_matmul: a separate f64 sum for each output.

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"

namespace qlora::cpu {

PreparedKernel adapter_matmul::reference::prepare(const KernelRequest &r,
                                                  uint64_t) {
  return makeKernel([r](const LibraryKernelArgs &args) {
    const int64_t n = r.constant("n"), k = r.constant("k");
    const int64_t adapters = r.constant("adapters");
    const double beta = r.constantAsDouble("beta");
    const auto *w = bufferOf<const float>(args, 1);
    for (int64_t row = 0; row < r.constant("m"); ++row) {
      const int64_t adapter = bufferOf<const int32_t>(args, 2)[row];
      const bool hasAdapter = adapter >= 0 && adapter < adapters;
      for (int64_t j = 0; j < n; ++j) {
        const int64_t out = row * r.constant("ldy") + j;
        double sum = beta == 0 ? 0
                               : beta * double(loadElement(
                                            r.type("y"), args.buffers[3], out));
        for (int64_t i = 0; hasAdapter && i < k; ++i)
          sum += double(loadElement(r.type("x"), args.buffers[0],
                                    row * r.constant("ldx") + i)) *
                 double(w[(j * adapters + adapter) * k + i]);
        storeElement(r.type("y"), args.buffers[3], out, float(sum));
      }
    }
    return Status::ok();
  });
}

} // namespace qlora::cpu
