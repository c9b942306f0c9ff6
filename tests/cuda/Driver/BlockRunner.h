// SPDX-License-Identifier: MIT

// Runs a launch: its blocks one after the other, the threads of a block as
// fibers. A thread runs until it meets others (a barrier, a shuffle) and they
// are not there yet; a kernel whose threads never meet runs as a plain loop on
// one stack.
//
// Found and reported, with kernel, block and thread: a barrier that not all
// threads of the block reach, or reach at different lines; a warp operation
// with missing lanes; a read from a lane that takes no part; an access outside
// of device memory, a misaligned one, an index outside of an array; a stack
// that overflows. Shared memory holds NaN before every block. Half of the
// blocks, by the seed, run their warps and lanes from the last to the first,
// so that a missing barrier shows.

#ifndef QLORA_TESTS_CUDA_DRIVER_BLOCKRUNNER_H
#define QLORA_TESTS_CUDA_DRIVER_BLOCKRUNNER_H

#include <cstdint>
#include <string>

#include "tests/cuda/HostImage.h"

namespace qlora::platform {

/// A loaded image: what it exports.
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

/// What a failed launch says, and CUDA's code for it; `message` is empty where
/// it succeeded.
struct LaunchResult {
  int code = 0;
  std::string message;
};

/// One launch at a time. The calling thread becomes the kernel's.
LaunchResult runBlocks(const Launch &launch);

/// What the kernels of an image call: goes into its `qlora_host`.
const qlora_host_engine *hostEngine();

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_BLOCKRUNNER_H
