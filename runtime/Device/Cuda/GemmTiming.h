// SPDX-License-Identifier: MIT

// Measures the candidates of a card's matrix products and chooses the fastest
// of each. Done once at load, before weights are there and graphs are made:
// the operands lie in the arenas, which hold nothing yet and are zero again
// afterwards, so no memory of the card is allocated (but cuBLASLt loads the
// code of what it runs).
//
// Every candidate runs once to warm up, then in rounds with the others, whose
// best is its time; one that is far behind drops out. A later candidate must
// be clearly faster than cuBLASLt's earlier ones, so that noise does not
// choose. Operands hold random numbers, since the clock of a card depends on
// how many of its bits toggle. They may be in the cache between runs.

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
  size_t outOfTime = 0; ///< not measured, since the bound was reached
  size_t outOfRoom = 0; ///< not measured, since operands do not fit
};

/// Measures the choices of `gemms` that have candidates for aligned operands
/// and no time yet. `memory` is what operands may lie in; it holds zeros, now
/// and when this returns without an error. No product is begun once `bound`
/// has passed; cuBLASLt's first choice stays then.
StatusOr<GemmTimingResult>
measureGemms(GemmSelection &gemms, const CudaDriver &driver,
             CudaQueues &queues, CudaTransfers &transfers,
             std::span<const CudaSpan> memory, std::chrono::milliseconds bound);

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_GEMMTIMING_H
