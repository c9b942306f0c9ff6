// SPDX-License-Identifier: MIT

// What a test asks of the software platform, by environment variables, and
// what the platform tells it.
//
//   QLORA_TEST_CUDA_DEVICES   "sm_90:4096,sm_80:1024": the cards and their
//                             memory in MiB; "none" is no card. Default:
//                             one sm_90 with 4096.
//   QLORA_TEST_CUDA_SEED      of the order of work across streams and of the
//                             direction that blocks run in. Default 1.
//   QLORA_TEST_CUDA_FAIL      "cuMemAlloc_v2:3:2,run:7:700": the third call of
//                             cuMemAlloc_v2 returns 2 and does nothing; the
//                             7th operation that a stream runs fails with 700.
//                             "run:7:kill" kills the process there;
//                             "run:7:700@1" is for the rank with RANK=1 only.
//   QLORA_TEST_CUDA_ASYNC     "3:2" or "3:2@1": when its third collective has
//                             run, NCCL tells error 2 of the communicator.
//   QLORA_TEST_CUDA_HANG      "3" or "3@1": the third collective never gets
//                             to the other ranks.
//   QLORA_TEST_CUDA_BLAS      version of cuBLASLt, default 130000.
//   QLORA_TEST_CUDA_SPEEDS    "3" or "3@1": another number is other times of
//                             cuBLASLt's algorithms. Default 0.
//   QLORA_TEST_CUDA_CUDNN     version of cuDNN, default 92801; one below 91900
//                             is too old to be used.
//   QLORA_TEST_CUDA_SCORES    "0": cuDNN has no engine that stores the scores'
//                             gradient. Default 1.
//   QLORA_TEST_CUDA_PROCESSES "0:4711:python:2048,1:12::0": others that hold
//                             memory: card, pid, name (empty: unreadable) and
//                             MiB (0: NVML does not know).
//   QLORA_TEST_CUDA_NCCL      version of NCCL, default 22809.
//   QLORA_TEST_CUDA_VERSION   of the driver, default 13000.
//   QLORA_TEST_CUDA_MODULE    a train.so: its kernels get their operands one by
//                             one (OperandGuard.h).
//   QLORA_TEST_CUDA_REPORT    a file for the counters, written at exit as one
//                             JSON object; {pid} in it is the process. Beside
//                             calls: "bits of 128 bytes", a hash of memory of
//                             that size when it was freed.
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

struct Card {
  int arch; ///< 10 * major + minor
  size_t bytes;
};

/// That is not ours.
struct Process {
  int card;
  unsigned pid;
  std::string name;
  size_t bytes;
};

struct Settings {
  std::vector<Card> cards;
  std::vector<Process> processes;
  uint64_t seed;
  int version;
  int ncclVersion;
  int blasVersion;
  int dnnVersion;
  bool dnnStoresScores;
  uint64_t blasSpeeds;        ///< of algorithms, drawn from it
  uint64_t failingCollective; ///< from 1; 0: none
  int asyncError;             ///< of NCCL, when that one has run
  uint64_t hangingCollective; ///< from 1; 0: none
};
const Settings &settings();

/// Of a card of the settings.
std::string pciBusIdOf(int card);
/// Of a card's memory, held by processes that are not ours.
size_t bytesOfOthers(int card);

/// Counts a call or an event of that name; the code that it is to fail with,
/// or 0.
int countAndInject(std::string_view name);

/// Whether counters are written at the end.
bool wantsReport();

/// Counts, without a failure.
void countEvent(std::string_view name, uint64_t by = 1);

/// A line on stderr, "cuda-platform: ...": why a call or a kernel failed.
void explain(std::string_view message);

/// A number from the seed; the same sequence in every run.
uint64_t nextRandom();

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_SETTINGS_H
