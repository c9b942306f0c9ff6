// SPDX-License-Identifier: MIT

// Kernels on the software platform. Threads of a block synchronise as on a
// device. Each kind of mistake ends the launch with a message about it.

#include "tests/cuda/Platform/Platform.h"

#include <gtest/gtest.h>

#include <numeric>

using namespace qlora;
using namespace qlora::platform;

static std::vector<float> upTo(size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

/// Returns the results of a kernel with shared memory for inputs 0 to 191, in
/// three blocks of 64.
static std::vector<float> mapped(const char *kernel) {
  Client client;
  const CUdeviceptr in = client.allocate(192);
  const CUdeviceptr out = client.allocate(192);
  client.write(in, upTo(192));
  client.require(client.launch(kernel, {out, in}, client.stream, 0, 3, 64, 256),
                 kernel);
  return client.read(out, 192);
}

TEST(Kernel, SumsABlock) {
  EXPECT_TRUE(inProcess({}, [] {
    const std::vector<float> sums = mapped("block_sum");
    // The first block sums to 64 * (0 + 63) / 2, and each later block to 64 *
    // 64 more.
    return sums[0] == 2016 && sums[1] == 2016 + 4096 && sums[2] == 2016 + 8192;
  }));
}

TEST(Kernel, HasDynamicSharedMemory) {
  EXPECT_TRUE(inProcess({}, [] {
    const std::vector<float> values = mapped("reverse");
    return values[0] == 63 && values[63] == 0 && values[64] == 127;
  }));
}

TEST(Kernel, RunsEveryWarpOperation) {
  EXPECT_TRUE(inProcess({}, [] {
    const std::vector<float> values = mapped("warp_operations");
    return values == std::vector<float>(192, 1.0f);
  }));
}

TEST(Kernel, AMissingBarrierShows) {
  EXPECT_TRUE(inProcess({}, [] {
    const std::vector<float> values = mapped("reverse_without_barrier");
    int wrong = 0;
    for (size_t i = 0; i < values.size(); ++i)
      wrong += values[i] != float(i / 64 * 64 + 63 - i % 64);
    return wrong == 96; // half of every block reads unwritten values
  }));
}

TEST(Kernel, FreshMemoryIsNaN) {
  EXPECT_TRUE(inProcess({}, [] {
    Client client;
    const float value = client.read(client.allocate(1), 1)[0];
    return value != value;
  }));
}

/// Launches a kernel with a mistake. Expects the code, the same code from every
/// later call, and `words` on stderr.
static void expectFailure(const char *kernel, CUresult code, const char *words,
                          int64_t constant = 0) {
  std::string errors;
  EXPECT_TRUE(inProcess(
      {},
      [=] {
        Client client;
        const CUdeviceptr in = client.allocate(64);
        const CUdeviceptr out = client.allocate(64);
        client.write(in, upTo(64));
        const CUresult launched =
            client.launch(kernel, {out, in}, client.stream, constant);
        const CUresult waited = cuStreamSynchronize(client.stream);
        CUdeviceptr unused;
        return launched == 0 && waited == code &&
               cuMemAlloc_v2(&unused, 1) == code;
      },
      &errors))
      << kernel << ": " << errors;
  EXPECT_NE(errors.find(words), std::string::npos) << kernel << ": " << errors;
}

TEST(Kernel, MistakesAreNamed) {
  expectFailure("divergent_barrier", kLaunchFailed,
                "is reached by 32 of 64 threads of the block, 32 have");
  expectFailure("two_barriers", kLaunchFailed, "is met by the one at line");
  expectFailure("missing_lane", kLaunchFailed,
                "is reached by lanes 0xfffffff7 only");
  expectFailure("write_past_end", kIllegalAddress,
                "0 bytes past the end of an allocation of 256 bytes");
  expectFailure("write_past_end", kIllegalAddress,
                "4000 bytes past the end of an allocation of 256", 1000);
  expectFailure("write_past_end", kIllegalAddress,
                "wrote outside of the allocation of buffer 0, 256 bytes", -80);
  expectFailure("misaligned", kMisalignedAddress, "misaligned or null");
  expectFailure("past_shared", kIllegalAddress, "outside of its array", 8);
  expectFailure("overflow_stack", kIllegalAddress, "accesses", 1 << 20);
}

TEST(Kernel, GeometryIsChecked) {
  EXPECT_TRUE(inProcess({}, [] {
    Client client;
    const CUdeviceptr out = client.allocate(512);
    const auto launch = [&](unsigned blocks, unsigned threads,
                            unsigned shared) {
      return client.launch("fill", {out}, client.stream, 1, blocks, threads,
                           shared);
    };
    return launch(0, 64, 0) == kInvalidValue &&
           launch(1, 288, 0) == kInvalidValue && // __launch_bounds__(256)
           launch(1, 64, (48 << 10) + 1) == kInvalidValue &&
           cuFuncSetAttribute(client.function("fill"),
                              kCudaFuncMaxDynamicShared,
                              228 << 10) == kInvalidValue &&
           launch(1, 256, 48 << 10) == kSuccess;
  }));
}

TEST(Kernel, ArgumentsAreMemoryOfTheGpu) {
  std::string errors;
  EXPECT_TRUE(inProcess(
      {},
      [] {
        Client client;
        static float host[64];
        client.require(client.launch("fill",
                                     {reinterpret_cast<CUdeviceptr>(host)},
                                     client.stream),
                       "launch");
        return cuStreamSynchronize(client.stream) == kIllegalAddress;
      },
      &errors));
  EXPECT_NE(errors.find("which is no device memory"), std::string::npos);
}

TEST(Kernel, UseAfterFreeIsFound) {
  EXPECT_TRUE(inProcess({}, [] {
    Client client;
    const CUdeviceptr out = client.allocate(64);
    client.require(cuMemFree_v2(out), "free");
    client.require(client.launch("fill", {out}, client.stream), "launch");
    return cuStreamSynchronize(client.stream) == kIllegalAddress;
  }));
}

/// Returns whether a GPU returns these codes for loading PTX, then a cubin.
static bool loads(const std::string &gpu, CUresult ptx, CUresult cubin,
                  const std::string &driver = "13000") {
  const Environment environment = {{"QLORA_TEST_CUDA_DEVICES", gpu + ":64"},
                                   {"QLORA_TEST_CUDA_VERSION", driver}};
  return inProcess(environment, [=] {
    CUcontext context = nullptr;
    Client::require(cuInit(0), "init");
    Client::require(cuDevicePrimaryCtxRetain(&context, 0), "retain");
    Client::require(cuCtxSetCurrent(context), "current");
    return Client::load(nullptr, true) == ptx &&
           Client::load(nullptr, false) == cubin;
  });
}

TEST(Kernel, ImagesRunOnTheGpusThatTheyFit) {
  EXPECT_TRUE(loads("sm_90", kSuccess, kSuccess));
  EXPECT_TRUE(loads("sm_89", kSuccess, kNoBinary));
  EXPECT_TRUE(loads("sm_100", kSuccess, kNoBinary));
  EXPECT_TRUE(loads("sm_75", kInvalidPtx, kNoBinary));
}

TEST(Kernel, ImagesRunOnTheDriversThatKnowThem) {
  EXPECT_TRUE(loads("sm_90", kSuccess, kSuccess, "13020"));
  EXPECT_TRUE(loads("sm_90", kUnsupportedPtx, kInvalidImage, "12080"));
}
