// SPDX-License-Identifier: MIT

// An NVIDIA GPU as a device. Arenas are in device memory; queues are streams
// (CudaQueues.h); an entry runs command by command once, which loads what
// libraries load late, is captured when it runs again, and is one graph launch
// from then on (CudaGraphs.h), except while a KernelObserver looks inside. Entries, inputs and the step block are ordered by the compute
// stream; the host waits only where it reads.
//
// NVIDIA's libraries are opened here, at run time (CudaApi.h): the driver
// always, cuBLASLt where the module has library kernels.
//
// Ranks. One process drives one card, number DeviceOptions.ordinal. Sums over
// several ranks need NCCL, which is not used yet: a module with collectives is
// refused in a group of more than one.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDADEVICE_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDADEVICE_H

#include <memory>

#include "runtime/Device/Cuda/CudaApi.h"
#include "runtime/Device/Device.h"

namespace qlora {

/// kUnavailable where there is no driver or no such card.
StatusOr<std::unique_ptr<Device>> createCudaDevice(const DeviceOptions &);

/// The same on a driver that is open already and outlives the device.
StatusOr<std::unique_ptr<Device>> createCudaDevice(const DeviceOptions &options,
                                                   const CudaDriver &driver);

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDADEVICE_H
