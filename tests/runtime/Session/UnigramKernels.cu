// SPDX-License-Identifier: MIT

// GPU kernels of UnigramModule.c. One thread does all work.

#define UNIGRAM_ARGS qlora_cuda_args
#define UNIGRAM_FUNCTION static __device__
#include "tests/runtime/Session/UnigramKernels.h"

#define UNIGRAM_KERNEL(name)                                                   \
  extern "C" __global__ void unigram_##name(                                   \
      const __grid_constant__ qlora_cuda_args args) {                          \
    if (threadIdx.x == 0)                                                      \
      name(&args, 0, args.rows);                                               \
  }

UNIGRAM_KERNEL(accumulate)
UNIGRAM_KERNEL(evaluate)
UNIGRAM_KERNEL(adamw)
