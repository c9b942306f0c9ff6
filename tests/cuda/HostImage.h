// SPDX-License-Identifier: MIT

// What a device image compiled for the host and the software driver know of
// each other. host-nvcc (the test compiler) writes a shared object in place of
// a cubin; its only exported symbols are
//
//   qlora_host_image_table  what it is, which kernels it has, for the driver
//   qlora_host              set by the driver: what threads ask of their block
//   qlora_host_at           set by the driver: where the running thread is
//
// Variables in __shared__ memory are in a section of their own, so that the
// driver can fill it with a pattern before every block: one block runs at a
// time.

#ifndef QLORA_TESTS_CUDA_HOSTIMAGE_H
#define QLORA_TESTS_CUDA_HOSTIMAGE_H

#include <stdint.h>

/// CUDA's dim3 and uint3.
struct qlora_host_dim {
  unsigned x, y, z;
};

/// Where a thread is: written by the driver before the thread goes on.
struct qlora_host_place {
  qlora_host_dim thread, block, blockCount, threadCount;
};

/// What the lanes of a warp do together. All lanes of `mask` must come to the
/// same operation at the same line.
enum qlora_host_warp_operation {
  QLORA_HOST_SHUFFLE = 0, ///< value of the lane `source`
  QLORA_HOST_BALLOT = 1,  ///< bit i: lane i gave a number other than zero
  QLORA_HOST_SYNC = 2     ///< nothing but the meeting
};

/// What the threads of a block do together. All threads must come to it.
enum qlora_host_block_operation {
  QLORA_HOST_BARRIER = 0,
  QLORA_HOST_COUNT = 1 ///< how many threads gave a number other than zero
};

/// Calls of a running thread. They return in the same thread after others
/// have run; a thread whose launch has failed never returns.
struct qlora_host_engine {
  int (*block)(qlora_host_block_operation operation, int predicate, int line);
  uint64_t (*warp)(qlora_host_warp_operation operation, uint32_t mask,
                   uint64_t value, int source, int line);
  void *(*dynamicShared)();
  /// The kernel stops itself: __trap(), a failed assertion.
  void (*fail)(const char *what, int line);
};

struct qlora_host_kernel {
  const char *name;
  void (*function)(const void *args); ///< of one thread
  unsigned maxThreads;                ///< __launch_bounds__, or 1024
};

inline constexpr uint32_t QLORA_HOST_IMAGE_MAGIC = 0x48434451u;

struct qlora_host_image {
  uint32_t magic;
  uint32_t isPtx;
  uint32_t arch;        ///< 10 * major + minor
  uint32_t cudaVersion; ///< of the compiler, 1000 * major + 10 * minor
  uint32_t kernelCount;
  const qlora_host_kernel *kernels;
  char *sharedBegin; ///< static shared memory of all kernels
  char *sharedEnd;
};

#endif // QLORA_TESTS_CUDA_HOSTIMAGE_H
