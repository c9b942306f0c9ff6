// SPDX-License-Identifier: MIT

// Order of work: under every seed, ordered work stays ordered. Unordered work
// gives wrong results under some seeds.

#include "tests/cuda/Platform/Platform.h"

#include <gtest/gtest.h>

using namespace qlora;
using namespace qlora::platform;

static constexpr int kSeeds = 16;

/// Returns the number of seeds under which the body returns true.
static int countSeeds(const std::function<bool()> &body) {
  int count = 0;
  for (int seed = 1; seed <= kSeeds; ++seed)
    count += inProcess({{"QLORA_TEST_CUDA_SEED", std::to_string(seed)}}, body);
  return count;
}

/// Fills a buffer with 5 on one stream and adds one on another, with or without
/// events in between. Does it twice, so that the buffer is also written after
/// it was read.
static bool fillsThenAdds(bool hasEvents) {
  Client client;
  const CUstream other = client.newStream();
  const CUevent isFilled = client.newEvent();
  const CUevent isRead = client.newEvent();
  const CUdeviceptr between = client.allocate(64);
  const CUdeviceptr out[2] = {client.allocate(64), client.allocate(64)};
  for (int i = 0; i < 2; ++i) {
    client.require(client.launch("fill", {between}, client.stream, 5 + i),
                   "fill");
    if (hasEvents) {
      client.require(cuEventRecord(isFilled, client.stream), "record");
      client.require(cuStreamWaitEvent(other, isFilled, 0), "wait");
    }
    client.require(client.launch("add_one", {out[i], between}, other), "add");
    if (hasEvents) {
      client.require(cuEventRecord(isRead, other), "record");
      client.require(cuStreamWaitEvent(client.stream, isRead, 0), "wait");
    }
  }
  return client.read(out[0], 64) == std::vector<float>(64, 6.0f) &&
         client.read(out[1], 64) == std::vector<float>(64, 7.0f);
}

TEST(Stream, EventsOrderStreams) {
  EXPECT_EQ(countSeeds([] { return fillsThenAdds(true); }), kSeeds);
}

TEST(Stream, AMissingWaitShows) {
  const int right = countSeeds([] { return fillsThenAdds(false); });
  EXPECT_LT(right, kSeeds / 2);
}

TEST(Stream, WorkOfOneStreamIsInOrder) {
  EXPECT_EQ(countSeeds([] {
              Client client;
              const CUdeviceptr a = client.allocate(64);
              for (int i = 0; i < 20; ++i)
                client.require(client.launch("fill", {a}, client.stream, i),
                               "fill");
              return client.read(a, 64)[63] == 19;
            }),
            kSeeds);
}

/// Copies to pinned memory. The host reads it immediately, or after a wait.
static bool readsPinned(bool waits) {
  Client client;
  void *host = nullptr;
  client.require(cuMemHostAlloc(&host, 256, 0), "pinned");
  const CUdeviceptr device = client.allocate(64);
  client.require(client.launch("fill", {device}, client.stream, 3), "fill");
  client.require(cuMemcpyDtoHAsync_v2(host, device, 256, client.stream),
                 "copy");
  if (waits)
    client.require(cuStreamSynchronize(client.stream), "wait");
  return static_cast<float *>(host)[0] == 3;
}

TEST(Stream, CopiesHappenLate) {
  EXPECT_EQ(countSeeds([] { return readsPinned(true); }), kSeeds);
  EXPECT_LT(countSeeds([] { return readsPinned(false); }), kSeeds / 2);
}

TEST(Stream, APinnedSourceMustLastUntilTheCopy) {
  const auto overwrites = [] {
    Client client;
    void *host = nullptr;
    client.require(cuMemHostAlloc(&host, 256, 0), "pinned");
    const CUdeviceptr device = client.allocate(64);
    static_cast<float *>(host)[0] = 1;
    client.require(cuMemcpyHtoDAsync_v2(device, host, 256, client.stream),
                   "copy");
    static_cast<float *>(host)[0] = 2;
    return client.read(device, 1)[0] == 1;
  };
  const int right = countSeeds(overwrites);
  EXPECT_LT(right, kSeeds); // early under some, late under others
  EXPECT_GT(right, 0);
}

/// Returns whether kernels have run after calls that neither wait nor submit.
static bool runsWithoutTheHost() {
  Client client;
  const CUdeviceptr a = client.allocate(64);
  for (int i = 0; i < 20; ++i)
    client.require(client.launch("fill", {a}, client.stream, i), "fill");
  const auto start = std::chrono::steady_clock::now();
  int version = 0;
  for (int i = 0; i < 100; ++i)
    client.require(cuDriverGetVersion(&version), "version");
  const bool isLate = std::chrono::steady_clock::now() - start >
                      std::chrono::milliseconds(1);
  return reinterpret_cast<const float *>(a)[0] == 19 && isLate;
}

TEST(Stream, TheGpuGoesOnWhileTheHostIsLate) {
  EXPECT_FALSE(inProcess({}, runsWithoutTheHost));
  for (const char *delay : {"1:1000", "2:1000"})
    EXPECT_TRUE(
        inProcess({{"QLORA_TEST_CUDA_DELAY", delay}}, runsWithoutTheHost));
  EXPECT_FALSE(
      inProcess({{"QLORA_TEST_CUDA_DELAY", "1:1000@1"}}, runsWithoutTheHost));
}

TEST(Stream, TheDefaultStreamIsInOrderWithBlockingOnes) {
  EXPECT_EQ(countSeeds([] {
              Client client;
              CUstream blocking = nullptr;
              client.require(cuStreamCreate(&blocking, 0), "stream");
              const CUdeviceptr a = client.allocate(64);
              const CUdeviceptr b = client.allocate(64);
              client.require(client.launch("fill", {a}, blocking, 1), "fill");
              client.require(client.launch("add_one", {b, a}, nullptr), "add");
              client.require(client.launch("add_one", {a, b}, blocking), "add");
              return client.read(a, 1)[0] == 3;
            }),
            kSeeds);
}

TEST(Stream, EventsMeasureTime) {
  EXPECT_TRUE(inProcess({}, [] {
    Client client;
    CUevent begin = nullptr;
    CUevent end = nullptr;
    client.require(cuEventCreate(&begin, 0), "event");
    client.require(cuEventCreate(&end, 0), "event");
    client.require(cuEventRecord(begin, client.stream), "record");
    client.require(cuEventRecord(end, client.stream), "record");
    float elapsed = -1;
    client.require(cuStreamSynchronize(client.stream), "wait");
    client.require(cuEventElapsedTime(&elapsed, begin, end), "elapsed");
    return elapsed == 1e-3f && // an operation takes a microsecond
           cuEventElapsedTime(&elapsed, begin, client.newEvent()) ==
               kInvalidHandle;
  }));
}

TEST(Stream, DeadHandlesAreRefused) {
  EXPECT_TRUE(inProcess({}, [] {
    Client client;
    const CUstream other = client.newStream();
    const CUdeviceptr a = client.allocate(64);
    client.require(cuStreamDestroy_v2(other), "destroy");
    return client.launch("fill", {a}, other) == kInvalidHandle &&
           cuStreamDestroy_v2(other) == kInvalidHandle &&
           cuMemFree_v2(a + 4) == kInvalidValue;
  }));
}
