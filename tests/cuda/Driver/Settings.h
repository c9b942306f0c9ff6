// SPDX-License-Identifier: MIT

// Environment variables with which a test controls the software platform, and
// the platform's reports to the test.
//
//   QLORA_TEST_CUDA_DEVICES   "sm_90:4096,sm_80:1024": the GPUs and their
//                             memory in MiB; "none" is no GPU. Default:
//                             one sm_90 with 4096.
//   QLORA_TEST_CUDA_SEED      seed of the order of work across streams and
//                             the direction that blocks run in. Default 1.
//   QLORA_TEST_CUDA_FAIL      "cuMemAlloc_v2:3:2,run:7:700": the third call of
//                             cuMemAlloc_v2 returns 2 and does nothing; the
//                             7th operation that a stream runs fails with 700.
//                             "run:7:kill" kills the process there;
//                             "run:7:700@1" is for the rank with RANK=1 only.
//                             A test program's qloraPlatformFault() is asked
//                             too (tests/runtime/FaultCalls.cpp).
//   QLORA_TEST_CUDA_ASYNC     "3:2" or "3:2@1": when its third collective has
//                             run, NCCL reports error 2 of the communicator.
//   QLORA_TEST_CUDA_HANG      "3" or "3@1": the third collective never reaches
//                             the other ranks.
//   QLORA_TEST_CUDA_DELAY     "7:300" or "7:300@1": now and then the host waits
//                             up to 300 us before a call. Seed 7 and the rank
//                             determine when. The GPU works meanwhile.
//   CUDA_MODULE_LOADING       CUDA's own. EAGER: kernels are loaded before
//                             first use; else first use fails in a capture.
//   QLORA_TEST_CUDA_BLAS      version of cuBLASLt, default 130000.
//   QLORA_TEST_CUDA_SPEEDS    "3" or "3@1": seed of the times of cuBLASLt's
//                             algorithms. Default 0.
//   QLORA_TEST_CUDA_CUDNN     version of cuDNN, default 92801; a version below
//                             91900 is too old to be used.
//   QLORA_TEST_CUDA_SCORES    "0": cuDNN has no engine that stores the scores'
//                             gradient. Default 1.
//   QLORA_TEST_CUDA_PROCESSES "0:4711:python:2048,1:12::0": other processes
//                             that hold memory: GPU, pid, name (empty:
//                             unreadable) and MiB (0: unknown to NVML).
//   QLORA_TEST_CUDA_NCCL      version of NCCL, default 22809.
//   QLORA_TEST_CUDA_VERSION   of the driver, default 13000.
//   QLORA_TEST_CUDA_MODULE    a train.so: its kernels get their operands in
//                             separate allocations (OperandGuard.h).
//   QLORA_TEST_CUDA_REPORT    a file for the counters, written at exit as one
//                             JSON object; {pid} in its name is the process
//                             id. "bits of 128 bytes" is the sum of content
//                             hashes of freed device allocations of 128 bytes.
//
// A value that cannot be read ends the process with status 2.

#ifndef QLORA_TESTS_CUDA_DRIVER_SETTINGS_H
#define QLORA_TESTS_CUDA_DRIVER_SETTINGS_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace qlora::platform {

struct Gpu {
  int arch; ///< 10 * major + minor
  size_t bytes;
};

/// Another program's process that a test puts on a GPU.
struct Process {
  int gpu;
  unsigned pid;
  std::string name;
  size_t bytes;
};

struct Settings {
  std::vector<Gpu> gpus;
  std::vector<Process> processes;
  uint64_t seed;
  int version;
  int ncclVersion;
  int blasVersion;
  int dnnVersion;
  bool dnnStoresScores;
  uint64_t blasSpeeds;        ///< seed of the times of cuBLASLt's algorithms
  uint64_t failingCollective; ///< index from 1; 0 if none fails
  int asyncError;             ///< NCCL's error after that collective
  uint64_t hangingCollective; ///< index from 1; 0 if none hangs
  uint64_t delaySeed;         ///< seed of this rank's delays
  uint64_t longestDelay;      ///< microseconds; 0 if the host is never delayed
  bool loadsEagerly;
};
const Settings &settings();

/// Returns the PCI bus id of a GPU of the settings.
std::string pciBusIdOf(int gpu);
/// Returns the bytes of a GPU's memory that other programs hold.
size_t bytesOfOthers(int gpu);

/// Counts a call or an event of that name. Returns the error code that the test
/// injects for it, or 0.
int countAndInject(std::string_view name);

/// Returns whether counters are written when the process ends.
bool wantsReport();

/// Counts an event, without an injected failure.
void countEvent(std::string_view name, uint64_t by = 1);

/// Writes "cuda-platform: MESSAGE" to stderr: why a call or a kernel failed.
void explain(std::string_view message);

/// Returns a random value from the seed; the same sequence in every run.
uint64_t nextRandom();
/// Returns the next value of the sequence with that state, which it advances.
uint64_t mix(uint64_t &state);

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_SETTINGS_H
