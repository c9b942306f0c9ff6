// SPDX-License-Identifier: MIT

// The platform's environment variables and counters.

#include "tests/cuda/Platform/Platform.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>

using namespace qlora;
using namespace qlora::platform;

TEST(Environment, EveryFunctionOfTheTableIsThere) {
  void *self = dlopen(nullptr, RTLD_NOW);
#define QLORA_DRIVER(Name, Symbol, Parameters)                                 \
  EXPECT_NE(dlsym(self, #Symbol), nullptr) << #Symbol;
#define QLORA_CUBLASLT(Name, Symbol, Parameters)                               \
  EXPECT_NE(dlsym(self, #Symbol), nullptr) << #Symbol;
#define QLORA_NCCL(Name, Symbol, Parameters)                                   \
  EXPECT_NE(dlsym(self, #Symbol), nullptr) << #Symbol;
#define QLORA_NVML(Name, Symbol, Parameters)                                   \
  EXPECT_NE(dlsym(self, #Symbol), nullptr) << #Symbol;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
}

TEST(Environment, NamesTheGpus) {
  EXPECT_TRUE(inProcess(
      {{"QLORA_TEST_CUDA_DEVICES", "sm_80:128,sm_120:64"},
       {"QLORA_TEST_CUDA_VERSION", "12040"}},
      [] {
        int count = 0;
        int version = 0;
        int major = 0;
        size_t bytes = 0;
        char name[32];
        Client::require(cuInit(0), "init");
        Client::require(cuDeviceGetCount(&count), "count");
        Client::require(cuDriverGetVersion(&version), "version");
        Client::require(cuDeviceGetAttribute(&major, kCudaAttributeMajor, 1),
                        "major");
        Client::require(cuDeviceTotalMem_v2(&bytes, 1), "memory");
        Client::require(cuDeviceGetName(name, 32, 1), "name");
        return count == 2 && version == 12040 && major == 12 &&
               bytes == 64u << 20 && !std::strcmp(name, "Software sm_120");
      }));
  EXPECT_TRUE(inProcess({{"QLORA_TEST_CUDA_DEVICES", "none"}},
                        [] { return cuInit(0) == kNoDevice; }));
}

TEST(Environment, AGpuHasItsMemoryOnly) {
  EXPECT_TRUE(inProcess({{"QLORA_TEST_CUDA_DEVICES", "sm_90:1"}}, [] {
    Client client;
    const CUdeviceptr most = client.allocate(1 << 18);
    CUdeviceptr more = 0;
    if (cuMemAlloc_v2(&more, 1) != kOutOfMemory)
      return false;
    client.require(cuMemFree_v2(most), "free");
    return cuMemAlloc_v2(&more, 1 << 20) == kSuccess;
  }));
}

TEST(Environment, ACallFailsWhereItIsAskedTo) {
  EXPECT_TRUE(inProcess(
      {{"QLORA_TEST_CUDA_FAIL", "cuMemAlloc_v2:2:2,cublasLtCreate:1:13"}}, [] {
        Client client;
        CUdeviceptr a = 0;
        cublasLtHandle_t handle = nullptr;
        return cuMemAlloc_v2(&a, 4) == 0 && cuMemAlloc_v2(&a, 4) == 2 &&
               cuMemAlloc_v2(&a, 4) == 0 && cublasLtCreate(&handle) == 13 &&
               cublasLtCreate(&handle) == 0;
      }));
}

TEST(Environment, AnOperationFailsLate) {
  EXPECT_TRUE(inProcess({{"QLORA_TEST_CUDA_FAIL", "run:2:700"}}, [] {
    Client client;
    const CUdeviceptr a = client.allocate(64);
    const CUresult first = client.launch("fill", {a}, client.stream);
    const CUresult second = client.launch("fill", {a}, client.stream);
    return first == 0 && (second == 0 || second == 700) &&
           cuStreamSynchronize(client.stream) == 700 &&
           cuMemAlloc_v2(nullptr, 4) == 700;
  }));
}

TEST(Environment, CountsCallsAndHostWaits) {
  const Report report;
  EXPECT_TRUE(inProcess({report.variable()}, [] {
    Client client;
    const CUdeviceptr a = client.allocate(64);
    client.require(client.launch("fill", {a}, client.stream), "fill");
    client.require(client.launch("fill", {a}, client.stream), "fill");
    client.require(cuStreamSynchronize(client.stream), "wait");
    float host = 0;
    client.require(cuMemcpyDtoHAsync_v2(&host, a, 4, client.stream), "copy");
    return true;
  }));
  EXPECT_EQ(report["cuLaunchKernel"], 2u);
  EXPECT_EQ(report["host waits"], 2u);
  EXPECT_EQ(report["pageable copies"], 1u);
  EXPECT_EQ(report["device bytes"], 256u);
}
