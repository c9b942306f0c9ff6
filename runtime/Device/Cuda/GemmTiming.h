// SPDX-License-Identifier: MIT

// Measures the candidates of a card's matrix products and chooses the fastest
// of each. Done once at load, before weights are there and graphs are made:
// the operands lie in the arenas, which hold nothing yet and are zero again
// afterwards, so no memory of the card is allocated (but cuBLASLt loads the
// code of what it runs).
//
// A candidate runs as it does in a step, from a CUDA graph: kLaunches of it in
// a row, which is long beside what an event resolves and what a launch costs.
// It runs once before, since code that is loaded for the first time would
// spoil a capture; one that does not run or cannot be captured is out. Then
// all graphs run in rounds, one behind the other without a wait, so that the
// card never idles between the two events of one. The best of the rounds is a
// candidate's time; one that is far behind drops out. A later candidate must be
// clearly faster than cuBLASLt's earlier ones, so that noise does not choose.
//
// Operands hold random numbers, since the clock of a card depends on how many
// of its bits toggle. Every launch has the same operands: what fits into the
// cache of the card (50 MB on an H100) is read from there, as a step would not
// have it. Times of small products are therefore too good, though for all
// candidates alike, and are no measure of a step.

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
