// SPDX-License-Identifier: MIT

// A card on which single launches are timed: what a library row or a generated
// kernel asks of its device, and one pool of memory that all operands lie in.
//
// A launch is captured many times into one graph, as a step is, and the graph
// runs a few times between two events. Its operands move through the pool from
// one node to the next, so that a cache has none of them, and are random
// numbers, since a card's clock follows the bits that toggle; integers are what
// the operand means (MicroOperand::integer).

#ifndef QLORA_BENCH_MICROCARD_H
#define QLORA_BENCH_MICROCARD_H

#include <chrono>
#include <functional>

#include "runtime/Device/Cuda/CudaImages.h"
#include "runtime/Device/Cuda/CudaQueues.h"
#include "runtime/Device/Cuda/CudaTransfers.h"
#include "runtime/Kernels/Cuda/CudaApi.h"
#include "runtime/Kernels/Cuda/CudaCard.h"
#include "runtime/Kernels/Cuda/CudaKernel.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

struct MicroOperand {
  uint64_t bytes = 0; ///< 0: absent
  /// Element i of an i32 operand.
  std::function<int32_t(uint64_t i)> integer = nullptr;
};

/// Puts the launch on the stream, with the addresses of its operands.
using MicroEnqueue =
    std::function<Status(std::span<void *const> buffers, CUstream stream)>;

class MicroCard final : public CudaContext {
public:
  /// At most `poolBytes` of memory, and half of what is free; at most `nodes`
  /// launches in a graph.
  Status open(uint64_t poolBytes, int64_t nodes);
  /// From here on functions are those of this module.
  Status load(const LoadedModule &module);

  /// Seconds of one launch: the median of five graphs. kResourceExhausted
  /// where the operands do not fit into the pool.
  StatusOr<double> time(std::span<const MicroOperand> operands,
                        const MicroEnqueue &enqueue);
  /// How long what is timed runs before, at least; once from the start.
  void setWarmUp(std::chrono::milliseconds duration) { warmUp = duration; }
  /// The median of some without a graph, for what takes long.
  StatusOr<double> timeDirect(std::span<const MicroOperand> operands,
                              const MicroEnqueue &enqueue);
  /// Seconds from the call that launches a graph until it returns, the last
  /// time, for each node.
  double hostSeconds() const { return hostSecondsOfNode; }

  /// Times the candidates that have no time yet.
  Status measure(GemmSelection &selection);

  /// The number that the pool has at an address, if nothing wrote there, and
  /// what is there now. bf16.
  float initial(const void *address) const;
  StatusOr<float> current(const void *address);

  const qlora_step_block *step() const {
    return reinterpret_cast<const qlora_step_block *>(stepMemory.get());
  }

  const CudaDriver &driver() const override { return *table; }
  const CublasLt &blas() const override { return *handle.library; }
  cublasLtHandle_t blasHandle() const override { return handle.handle; }
  StatusOr<const CudnnHandle *> cudnn() override { return cudnnHandle.get(); }
  int multiprocessors() const override { return card.multiprocessors; }
  uint32_t arch() const override { return card.arch; }
  StatusOr<CUfunction> function(std::string_view symbol) override {
    return images.function(symbol);
  }

  CudaCard card;
  CudaImages images;
  uint64_t memoryBytes = 0; ///< of the card

private:
  using Buffers = std::vector<void *>;

  StatusOr<CudaMemory> allocate(uint64_t bytes);
  Status fill(uint64_t bytes);
  /// Operands one behind the other in part `set` of the pool.
  StatusOr<Buffers> place(std::span<const MicroOperand> operands, uint64_t set,
                          uint64_t stride);
  /// So many sets of operands as a graph of `nodes` goes through.
  StatusOr<std::vector<Buffers>> makeSets(std::span<const MicroOperand>);
  StatusOr<double> timeGraph(std::span<const Buffers> sets, int64_t nodes,
                             const MicroEnqueue &enqueue);
  StatusOr<double> timeOnce(const std::function<Status()> &work);
  StatusOr<double> medianOf(const std::function<Status()> &work);

  std::chrono::milliseconds warmUp{};
  const CudaDriver *table = nullptr;
  CudaQueues queues;
  CudaTransfers transfers;
  CublasHandle handle;
  CudnnHandle cudnnHandle;
  CudaMemory pool, stepMemory;
  CudaEvent begin, end;
  uint64_t poolBytes = 0;
  int64_t mostNodes = 0;
  double hostSecondsOfNode = 0;
  std::vector<uint16_t> random; ///< what the pool repeats
};

} // namespace qlora

#endif // QLORA_BENCH_MICROCARD_H
