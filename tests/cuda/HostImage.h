// SPDX-License-Identifier: MIT

// The interface between a device image compiled for the host and the software
// driver. host-nvcc (the test compiler) writes a shared object instead of a
// cubin. It exports only
//
//   qlora_host_image_table  describes the image and its kernels
//   qlora_host              set by the driver: functions that threads call
//   qlora_host_at           set by the driver: place of the running thread
//
// Variables in __shared__ memory are in a separate section, so that the driver
// can fill it with a pattern before every block. One block runs at a time.

#ifndef QLORA_TESTS_CUDA_HOSTIMAGE_H
#define QLORA_TESTS_CUDA_HOSTIMAGE_H

#include <stdint.h>

/// CUDA's dim3 and uint3.
struct qlora_host_dim {
  unsigned x, y, z;
};

/// Position of a thread in its launch. The driver writes it before the thread
/// continues.
struct qlora_host_place {
  qlora_host_dim thread, block, blockCount, threadCount;
};

/// Operations of the lanes of a warp. All lanes of `mask` must reach the same
/// operation at the same line.
enum qlora_host_warp_operation {
  QLORA_HOST_SHUFFLE = 0, ///< value of the lane `source`
  QLORA_HOST_BALLOT = 1,  ///< bit i: lane i passed a value other than zero
  QLORA_HOST_SYNC = 2     ///< only the synchronisation
};

/// Operations of the threads of a block, which all threads must reach.
enum qlora_host_block_operation {
  QLORA_HOST_BARRIER = 0,
  QLORA_HOST_COUNT = 1 ///< number of threads that passed a value other than
                       ///< zero
};

/// Driver functions that a running thread calls. They may run other threads
/// before they return. If the launch has failed, they never return.
struct qlora_host_engine {
  int (*block)(qlora_host_block_operation operation, int predicate, int line);
  uint64_t (*warp)(qlora_host_warp_operation operation, uint32_t mask,
                   uint64_t value, int source, int line);
  void *(*dynamicShared)();
  /// Stops the kernel with an error, for example for __trap() or a failed
  /// assertion.
  void (*fail)(const char *what, int line);
};

struct qlora_host_kernel {
  const char *name;
  void (*function)(const void *args); ///< runs one thread
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
