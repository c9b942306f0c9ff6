// SPDX-License-Identifier: MIT

// The NVML look-alike reports a GPU's processes from the test's settings.

#include "tests/cuda/Platform/Platform.h"

#include <gtest/gtest.h>

#include <cstring>

namespace qlora {
extern "C" {
#define QLORA_NVML(Name, Symbol, Parameters) nvmlReturn_t Symbol Parameters;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
}
} // namespace qlora

using namespace qlora;
using namespace qlora::platform;

static const Environment kTwoGpus = {
    {"QLORA_TEST_CUDA_DEVICES", "sm_90:64,sm_90:64"},
    {"QLORA_TEST_CUDA_PROCESSES", "1:4711:python:16,0:3::1,1:12::0"}};

TEST(Nvml, ListsTheProcessesOfAGpu) {
  EXPECT_TRUE(inProcess(kTwoGpus, [] {
    nvmlDevice_t device = nullptr;
    char id[32], name[64];
    unsigned count = 0;
    nvmlProcessInfo_t processes[4];
    Client client(1);
    Client::require(cuDeviceGetPCIBusId(id, sizeof id, 1), "bus id");
    if (nvmlDeviceGetHandleByPciBusId_v2(id, &device) == 0)
      return false; // before nvmlInit
    Client::require(nvmlInit_v2(), "init");
    Client::require(nvmlDeviceGetHandleByPciBusId_v2(id, &device), "device");
    if (nvmlDeviceGetComputeRunningProcesses_v3(device, &count, nullptr) !=
            kNvmlInsufficientSize ||
        count != 2)
      return false;
    count = 4;
    Client::require(
        nvmlDeviceGetComputeRunningProcesses_v3(device, &count, processes),
        "compute");
    Client::require(nvmlSystemGetProcessName(4711, name, sizeof name), "name");
    unsigned drawing = 4;
    nvmlProcessInfo_t first[4];
    Client::require(
        nvmlDeviceGetGraphicsRunningProcesses_v3(device, &drawing, first),
        "graphics");
    return count == 2 && processes[0].pid == 4711 &&
           processes[0].usedGpuMemory == 16u << 20 &&
           processes[1].usedGpuMemory == kNvmlUnknown && drawing == 1 &&
           first[0].pid == 4711 &&
           !std::strcmp(name, "/usr/bin/python train.py") &&
           nvmlSystemGetProcessName(12, name, sizeof name) != 0;
  }));
}

TEST(Nvml, OthersTakeTheGpusMemory) {
  EXPECT_TRUE(inProcess(kTwoGpus, [] {
    Client client(1);
    size_t free = 0, total = 0;
    CUdeviceptr memory = 0;
    Client::require(cuMemGetInfo_v2(&free, &total), "memory");
    return total == 64u << 20 && free == 48u << 20 &&
           cuMemAlloc_v2(&memory, 49u << 20) == kOutOfMemory &&
           cuMemAlloc_v2(&memory, 47u << 20) == kSuccess;
  }));
}
