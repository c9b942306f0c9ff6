// SPDX-License-Identifier: MIT

// Runs a launch. Blocks run one after the other; the threads of a block are
// fibers. A thread runs until it waits for other threads (a barrier, a
// shuffle). If no thread waits, a block is a plain loop on one stack.
//
// Errors are reported with kernel, block and thread: a barrier that not all
// threads of the block reach, or that they reach at different lines; a warp
// operation with missing lanes; a read from an inactive lane; an access outside
// of device memory; a misaligned access; an index outside of an array; a stack
// overflow. Shared memory holds NaN before every block. Half of the blocks,
// chosen from the seed, run their warps and lanes from the last to the first,
// which exposes a missing barrier.

#ifndef QLORA_TESTS_CUDA_DRIVER_BLOCKRUNNER_H
#define QLORA_TESTS_CUDA_DRIVER_BLOCKRUNNER_H

#include <cstdint>
#include <string>

#include "tests/cuda/HostImage.h"

namespace qlora::platform {

/// The exported symbols of a loaded image.
struct ImageSymbols {
  const qlora_host_image *table;
  qlora_host_place *place;
};

struct Launch {
  const ImageSymbols *image;
  const qlora_host_kernel *kernel;
  const void *args;
  qlora_host_dim blocks, threads;
  unsigned dynamicSharedBytes;
  uint64_t seed;
};

/// The error of a failed launch, with CUDA's code; `message` is empty on
/// success.
struct LaunchResult {
  int code = 0;
  std::string message;
};

/// Runs a launch on the calling thread. Only one launch may run at a time.
LaunchResult runBlocks(const Launch &launch);

/// Returns the functions that an image's kernels call through `qlora_host`.
const qlora_host_engine *hostEngine();

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_BLOCKRUNNER_H
