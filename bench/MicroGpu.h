// SPDX-License-Identifier: MIT

// MicroGpu times single launches on a GPU. It implements CudaContext, the
// interface that library and generated kernels use, and has one memory pool for
// all operands.
//
// A launch is captured many times into one graph, as in a training step. The
// graph runs a few times between two events. Each node uses a different section
// of the pool, so that no operand is in a cache. Operands are random, as in
// training: with zeros, few bits toggle, the GPU's clock stays higher, and the
// measured times are too short. Integer operands, such as ids, have valid
// values (MicroOperand::integer).

#ifndef QLORA_BENCH_MICROGPU_H
#define QLORA_BENCH_MICROGPU_H

#include <chrono>
#include <functional>

#include "runtime/Device/Cuda/CudaImages.h"
#include "runtime/Device/Cuda/CudaQueues.h"
#include "runtime/Device/Cuda/CudaTransfers.h"
#include "runtime/Kernels/Cuda/CudaApi.h"
#include "runtime/Kernels/Cuda/CudaGpu.h"
#include "runtime/Kernels/Cuda/CudaKernel.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

struct MicroOperand {
  uint64_t bytes = 0; ///< 0: absent
  /// Returns element i of an i32 operand.
  std::function<int32_t(uint64_t i)> integer = nullptr;
};

/// Enqueues the launch on the stream, with the addresses of its operands.
using MicroEnqueue =
    std::function<Status(std::span<void *const> buffers, CUstream stream)>;

class MicroGpu final : public CudaContext {
public:
  /// Allocates at most `poolBytes`, and at most half of the free memory. A
  /// graph has at most `nodes` launches.
  Status open(uint64_t poolBytes, int64_t nodes);
  /// Loads a module. Afterwards, function() finds its kernels.
  Status load(const LoadedModule &module);

  /// Returns the duration of one launch in seconds: the median of five graph
  /// launches, divided by the number of nodes. Fails with kResourceExhausted if
  /// the pool is too small for the operands.
  StatusOr<double> time(std::span<const MicroOperand> operands,
                        const MicroEnqueue &enqueue);
  /// Sets the minimum time to repeat the work before it is timed.
  void setWarmUp(std::chrono::milliseconds duration) { warmUp = duration; }
  /// Returns the duration of a long launch in seconds: the median of a few
  /// launches without a graph.
  StatusOr<double> timeDirect(std::span<const MicroOperand> operands,
                              const MicroEnqueue &enqueue);
  /// Host seconds of the last graph launch call, divided by its nodes.
  double hostSeconds() const { return hostSecondsOfNode; }

  /// Times the GEMM algorithms in `selection` that have no time yet.
  Status measure(GemmSelection &selection);

  /// Returns the bf16 value that fill() wrote to an address of the pool.
  float initial(const void *address) const;
  /// Returns the bf16 value that is now at an address of the pool.
  StatusOr<float> current(const void *address);

  const qlora_step_block *step() const {
    return reinterpret_cast<const qlora_step_block *>(stepMemory.get());
  }

  const CudaDriver &driver() const override { return *table; }
  const CublasLt &blas() const override { return *handle.library; }
  cublasLtHandle_t blasHandle() const override { return handle.handle; }
  StatusOr<const CudnnHandle *> cudnn() override { return cudnnHandle.get(); }
  int multiprocessors() const override { return gpu.multiprocessors; }
  uint32_t arch() const override { return gpu.arch; }
  StatusOr<CUfunction> function(std::string_view symbol) override {
    return images.function(symbol);
  }

  CudaGpu gpu;
  CudaImages images;
  uint64_t memoryBytes = 0; ///< total memory of the GPU

private:
  using Buffers = std::vector<void *>;

  StatusOr<CudaMemory> allocate(uint64_t bytes);
  Status fill(uint64_t bytes);
  /// Places operands one after another in section `set` of the pool.
  StatusOr<Buffers> place(std::span<const MicroOperand> operands, uint64_t set,
                          uint64_t stride);
  /// Fills the pool with sets of operands. The nodes of a graph use them in
  /// turn.
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
  std::vector<uint16_t> random; ///< the block that fills the pool
};

} // namespace qlora

#endif // QLORA_BENCH_MICROGPU_H
