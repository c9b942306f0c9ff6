// SPDX-License-Identifier: MIT

// matmul: one prepared product, and the reference.

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/Gemm.h"
#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora::cpu::matmul {

enum Operand { kA, kB, kC, kWorkspace };

PreparedKernel onednn::prepare(const KernelRequest &request,
                               uint64_t workspaceBytes) {
  QLORA_ASSIGN_OR_RETURN(
      std::unique_ptr<Gemm> gemm,
      Gemm::create(requests::matmulProblem(request), workspaceBytes));
  return makeKernel([gemm = std::move(gemm)](const LibraryKernelArgs &args) {
    return gemm->run(args.buffers[kA], args.buffers[kB], args.buffers[kC],
                     bufferOf<uint8_t>(args, kWorkspace));
  });
}

static double dot(const GemmProblem &p, const void *a, const void *b,
                  int64_t row, int64_t column) {
  double sum = 0;
  for (int64_t i = 0; i < p.k; ++i) {
    const int64_t aIndex = p.transposeA ? i * p.lda + row : row * p.lda + i;
    const int64_t bIndex =
        p.transposeB ? column * p.ldb + i : i * p.ldb + column;
    sum += double(loadElement(p.a, a, aIndex)) * loadElement(p.b, b, bIndex);
  }
  return sum;
}

PreparedKernel reference::prepare(const KernelRequest &request, uint64_t) {
  const GemmProblem p = requests::matmulProblem(request);
  return makeKernel([p](const LibraryKernelArgs &args) {
    parallelFor(p.m, threadCount(), [&](int64_t row, int64_t) {
      for (int64_t column = 0; column < p.n; ++column) {
        const int64_t index = row * p.ldc + column;
        double value =
            p.alpha * dot(p, args.buffers[kA], args.buffers[kB], row, column);
        if (p.beta != 0)
          value += double(p.beta) * loadElement(p.c, args.buffers[kC], index);
        storeElement(p.c, args.buffers[kC], index, float(value));
      }
    });
    return Status::ok();
  });
}

} // namespace qlora::cpu::matmul
