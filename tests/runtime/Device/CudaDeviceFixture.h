// SPDX-License-Identifier: MIT

// The demo module on the CUDA device, with fake tables of driver and NCCL
// functions.

#ifndef QLORA_TESTS_RUNTIME_DEVICE_CUDADEVICEFIXTURE_H
#define QLORA_TESTS_RUNTIME_DEVICE_CUDADEVICEFIXTURE_H

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <numeric>
#include <optional>

#include "runtime/Device/Cuda/CudaDevice.h"
#include "runtime/Device/Program.h"
#include "tests/runtime/DemoTables.h"
#include "tests/runtime/Device/FakeNccl.h"

namespace qlora {

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

constexpr DemoEntry kAllEntries[] = {kDemoEvaluate, kDemoAccumulate,
                                     kDemoUpdate};

template <typename T> inline const T *at(void *address) {
  return static_cast<const T *>(address);
}

/// Adds the demo's kernels, which compute the same as those in DemoModule.c.
inline void addKernels() {
  auto &kernels = fake::machine.kernels;
  kernels["scale_add"] = [](const qlora_cuda_args &args, unsigned blocks,
                            unsigned threads) {
    EXPECT_EQ(blocks, 4u);
    EXPECT_EQ(threads, 32u);
    for (int64_t i = 0; i < args.rows; ++i)
      static_cast<float *>(args.buffers[2])[i] =
          static_cast<float>(std::bit_cast<double>(args.constants[0])) *
              at<float>(args.buffers[0])[i] +
          at<float>(args.buffers[1])[i];
  };
  kernels["gather"] = [](const qlora_cuda_args &args, unsigned, unsigned) {
    for (int64_t i = 0; i < args.rows; ++i)
      static_cast<float *>(args.buffers[1])[i] +=
          static_cast<float>(at<int32_t>(args.buffers[0])[i]);
  };
  kernels["descend"] = [](const qlora_cuda_args &args, unsigned, unsigned) {
    for (int64_t i = 0; i < args.rows; ++i)
      static_cast<float *>(args.buffers[0])[i] -=
          args.step->learning_rate * at<float>(args.buffers[1])[i];
  };
}

class CudaDeviceFixture : public testing::Test {
protected:
  CudaDeviceFixture() : driver(fake::newDriver()), nccl(fake::newNccl()) {
    addKernels();
    tables.retarget();
  }
  ~CudaDeviceFixture() override { device.reset(); }

  Status create(const DeviceOptions &options) {
    device.reset();
    QLORA_ASSIGN_OR_RETURN(LoadedModule loaded, tables.load());
    module.emplace(std::move(loaded));
    QLORA_ASSIGN_OR_RETURN(device, createCudaDevice(options, driver, &nccl));
    return device->load(*module, nullptr);
  }

  /// Creates the device and sets w[i] = i, a[i] = 1, ids[i] = i + 1.
  Status start(const DeviceOptions &options) {
    QLORA_RETURN_IF_ERROR(create(options));
    std::vector<float> weights(16);
    std::iota(weights.begin(), weights.end(), 0.0f);
    QLORA_RETURN_IF_ERROR(write(kDemoFrozen, weights));
    QLORA_RETURN_IF_ERROR(write(kDemoTrainable, std::vector<float>(16, 1.0f)));
    std::vector<int32_t> ids(16);
    std::iota(ids.begin(), ids.end(), 1);
    return write(kDemoInput, ids);
  }

  template <typename T>
  Status write(uint32_t arena, const std::vector<T> &values) {
    return device->write(arena, 0,
                         {reinterpret_cast<const uint8_t *>(values.data()),
                          values.size() * sizeof(T)});
  }

  StatusOr<std::vector<float>> read(uint32_t arena) {
    std::vector<float> values(16);
    QLORA_RETURN_IF_ERROR(device->read(
        arena, 0, {reinterpret_cast<uint8_t *>(values.data()), 64}));
    return values;
  }

  Status run(DemoEntry entry, float rate = 0.5f) {
    qlora_step_block step{};
    step.learning_rate = rate;
    return runEntry(*device, *module, module->entries()[entry], step);
  }

  /// Makes nearly every driver call that a complete run makes.
  Status runAll(const DeviceOptions &options) {
    QLORA_RETURN_IF_ERROR(start(options));
    for (int times = 0; times < 3; ++times)
      for (const DemoEntry entry : kAllEntries)
        QLORA_RETURN_IF_ERROR(run(entry));
    std::array<uint8_t, 4> result;
    QLORA_RETURN_IF_ERROR(device->startRead(kDemoResult, 0, result.size()));
    QLORA_RETURN_IF_ERROR(device->finishRead(result));
    QLORA_RETURN_IF_ERROR(device->startTiming());
    QLORA_RETURN_IF_ERROR(run(kDemoUpdate));
    QLORA_RETURN_IF_ERROR(device->finishTiming().status());
    return read(kDemoResult).status();
  }

  CudaDriver &driver;
  const Nccl &nccl;
  DemoTables tables;
  std::optional<LoadedModule> module;
  std::unique_ptr<Device> device;
};

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_DEVICE_CUDADEVICEFIXTURE_H
