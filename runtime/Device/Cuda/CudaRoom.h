// SPDX-License-Identifier: MIT

// Whether a card has room for a plan, and who is in the way.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDAROOM_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDAROOM_H

#include "runtime/Kernels/Cuda/CudaCard.h"

namespace qlora {

/// kResourceExhausted where less than `plannedBytes` are free, in one line:
///
///   GPU 0 (NVIDIA H200) has 3.1 GiB free of 139.8 GiB, the plan needs 24.0
///   GiB: process 4711 (python) holds 136.2 GiB; stop it, choose another GPU
///   (CUDA_VISIBLE_DEVICES), or compile the model with a smaller
///   --memory-limit
///
/// without the processes where NVML does not name any.
Status checkRoom(const CudaCard &card, uint64_t plannedBytes);

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDAROOM_H
