// SPDX-License-Identifier: MIT

// An NVIDIA GPU as a device. Arenas are in device memory; queues are streams
// (CudaQueues.h). The first run of an entry's variant enqueues command by
// command, which loads the libraries' code. The second run is captured; later
// runs launch the graph (CudaGraphs.h). Graphs are not used while a
// KernelObserver reads values or commands are timed (CudaTimer.h). The compute
// stream orders entries, inputs and the step block. The host waits only in
// reads.
//
// NVIDIA's libraries are opened here, at run time (CudaApi.h): the driver
// always, cuBLASLt if the module has library kernels.
//
// Ranks. One process drives one GPU, index DeviceOptions.ordinal; other
// processes may drive it too. If a module with collectives is loaded in a group
// of several ranks, NCCL (NcclCollectives.h) runs the collectives on the
// communication stream, within the captured graph. Then the group's timeout
// limits each wait of the host. NCCL requires that all ranks capture such a
// graph together, and that they launch graphs of the same capture. So entries
// with collectives run command by command if ranks run different entries
// (Device::begin). The graph is chosen from values that all ranks share: the
// entry, labelled_rows, hasOneSegment, and whether commands are timed.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDADEVICE_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDADEVICE_H

#include <memory>

#include "runtime/Device/Cuda/NcclApi.h"
#include "runtime/Device/Device.h"
#include "runtime/Kernels/Cuda/CudaApi.h"

namespace qlora {

/// Like createCudaDevice(options), but with open libraries, which outlive the
/// device. kNotFound if there is no driver or no such GPU. If `nccl` is null,
/// NCCL is opened when it is needed.
StatusOr<std::unique_ptr<Device>> createCudaDevice(const DeviceOptions &options,
                                                   const CudaDriver &driver,
                                                   const Nccl *nccl = nullptr);

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDADEVICE_H
