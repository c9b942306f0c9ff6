// SPDX-License-Identifier: MIT

// Measures the candidate algorithms of each GEMM and chooses the fastest, once,
// before weights are loaded and graphs are captured. Operands are in the
// arenas, which are still unused and are zero again afterwards. So no device
// memory is allocated, except for code that cuBLASLt loads.
//
// A candidate runs from a CUDA graph, as in a step: kLaunches launches in a
// row, which take much longer than an event's resolution and a graph launch.
// Each candidate runs once before its capture, because loading its code would
// break the capture. Candidates that do not run or cannot be captured are
// dropped. Then all graphs run in rounds, one after another without a wait, so
// that the GPU never idles between a graph's two events. A candidate's time is
// its best round; much slower candidates are dropped. A candidate that cuBLASLt
// ranks lower must be clearly faster, so that noise does not decide.
//
// Operands hold random values, because the GPU's clock rate depends on how many
// bits toggle. Every launch has the same operands: data that fits in the L2
// cache (50 MB on an H100) is read from it, unlike in a step. So times of small
// GEMMs are too short for all candidates, and do not predict the time of a
// step.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_GEMMTIMING_H
#define QLORA_RUNTIME_DEVICE_CUDA_GEMMTIMING_H

#include <chrono>
#include <span>

#include "runtime/Device/Cuda/CudaQueues.h"
#include "runtime/Device/Cuda/CudaTransfers.h"
#include "runtime/Kernels/Cuda/GemmSelection.h"

namespace qlora {

struct GemmTimingResult {
  size_t measured = 0;
  size_t outOfTime = 0; ///< not measured: the time bound was reached
  size_t outOfRoom = 0; ///< not measured: the operands do not fit
};

/// Measures the choices of `gemms` that have candidates for aligned operands
/// and no time yet. `memory` is for the operands. It must hold zeros, and holds
/// zeros again when measureGemms() returns without an error. No measurement
/// starts after `bound`; the remaining GEMMs keep cuBLASLt's first choice.
StatusOr<GemmTimingResult>
measureGemms(GemmSelection &gemms, const CudaDriver &driver,
             CudaQueues &queues, CudaTransfers &transfers,
             std::span<const CudaSpan> memory, std::chrono::milliseconds bound);

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_GEMMTIMING_H
