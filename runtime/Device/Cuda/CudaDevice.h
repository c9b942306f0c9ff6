// SPDX-License-Identifier: MIT

// An NVIDIA GPU as a device. Arenas are in device memory; queues are streams
// (CudaQueues.h); a variant of an entry runs command by command once, which
// loads what libraries load late, is captured when it runs again, and is one
// graph launch from then on (CudaGraphs.h), except while a KernelObserver looks
// inside or commands are timed (CudaTimer.h). Entries, inputs and the step
// block are ordered by the compute stream; the host waits only where it reads.
//
// NVIDIA's libraries are opened here, at run time (CudaApi.h): the driver
// always, cuBLASLt where the module has library kernels.
//
// Ranks. One process drives one card, number DeviceOptions.ordinal, which
// others may drive too. Where a module with collectives is loaded in a group
// of more than one, the cards of the group add up by NCCL (NcclCollectives.h)
// on the communication stream, as a part of the captured graph; from then on
// no wait of the host is longer than the group's timeout. NCCL asks that all
// ranks capture such a graph together, and launch the one of the same capture:
// so an entry with collectives runs command by command where the ranks run
// different ones (Device::begin), and which of its variants it is follows from
// what is the same on all of them: the entry, labelled_rows, whether lines
// have segments, and that all are timed or none is.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDADEVICE_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDADEVICE_H

#include <memory>

#include "runtime/Device/Cuda/NcclApi.h"
#include "runtime/Device/Device.h"
#include "runtime/Kernels/Cuda/CudaApi.h"

namespace qlora {

/// As createCudaDevice(options), which is kNotFound where there is no driver
/// or no such card, on libraries that are open already and outlive the device;
/// without
/// `nccl`, it is opened where it is needed.
StatusOr<std::unique_ptr<Device>> createCudaDevice(const DeviceOptions &options,
                                                   const CudaDriver &driver,
                                                   const Nccl *nccl = nullptr);

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDADEVICE_H
