// SPDX-License-Identifier: MIT

// Common code of the LM head kernels on CUDA. Chunks of labelled rows are
// gathered and multiplied with w. For a gradient, the logits' gradient is
// multiplied with w and the hidden rows. The device finds the labelled rows.
// The host enqueues chunks for an upper bound of their number (labelledRows).
// All other choices are made when the kernel is prepared.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_HEADCHUNKS_H
#define QLORA_RUNTIME_KERNELS_CUDA_HEADCHUNKS_H

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/Kernels/Cuda/Gemm.h"

namespace qlora::cuda {

/// Threads of a block of Device/Head*.cu.
inline constexpr unsigned kHeadThreads = 512;

/// Labelled rows [first, first + rows).
struct HeadChunk {
  int64_t first = 0, rows = 0;
  CudaLaunch gather;
  std::optional<CudaLaunch> cap, scatter;
};

/// Addresses of one run: operands, then buffers of the workspace. Null if the
/// op or the launch lacks the buffer. Gradients are scattered to `dhidden`.
struct HeadBuffers {
  void *hidden, *w, *targets, *dhidden, *dw;
  void *labelled, *logits, *gathered, *panel, *gradient, *scratch;
};

class HeadChunks {
public:
  HeadChunks(const KernelRequest &request, CudaContext &context)
      : plan(plans::CudaHeadPlan::of(request)), context(context) {}
  /// Prepares all launches. `stride`: elements between rows of `dhidden`.
  Status prepare(const KernelRequest &request, int64_t stride);

  /// Returns the number of chunks that hold `labelledRows` labelled rows.
  size_t countFor(int64_t labelledRows) const {
    return static_cast<size_t>(
        blocksOf(std::min(labelledRows, plan.rows), plan.chunkRows));
  }
  size_t count() const { return chunks.size(); }
  const HeadChunk &operator[](size_t i) const { return chunks[i]; }

  /// Prepares a launch with one block for each row of a chunk.
  StatusOr<CudaLaunch> prepareRows(const HeadChunk &chunk,
                                   const std::string &symbol,
                                   std::span<const int64_t> constants) const {
    return CudaLaunch::prepare(context, symbol, {chunk.rows, kHeadThreads},
                               constants);
  }
  /// Lists the labelled rows; clears `correct` of all rows if not null.
  Status listLabelled(void *correct, const HeadBuffers &buffers,
                      const CudaKernelArgs &args) const;
  /// Zeroes the rows of dhidden without a label.
  Status clearUnlabelled(const HeadBuffers &buffers,
                         const CudaKernelArgs &args) const;
  /// Gathers a chunk's rows to `gathered` and computes their logits, uncapped.
  Status computeLogits(const HeadChunk &chunk, const HeadBuffers &buffers,
                       const CudaKernelArgs &args) const;
  Status capLogits(const HeadChunk &chunk, const HeadBuffers &buffers,
                   const CudaKernelArgs &args) const;
  /// Passes a chunk's logits to the observer, if there is one. The caller sets
  /// vocab and piece of `block`.
  Status observe(const HeadChunk &chunk, LogitsBlock block,
                 const HeadBuffers &buffers, const CudaKernelArgs &args) const;
  /// Computes the chunk's rows of dhidden, and adds the chunk to dw, from the
  /// gradient of the logits.
  Status computeGradients(const HeadChunk &chunk, const HeadBuffers &buffers,
                          const CudaKernelArgs &args) const;

  /// Sets the addresses of the workspace's buffers.
  void place(void *workspace, HeadBuffers &buffers) const;

  const plans::CudaHeadPlan plan;

private:
  using Problem = plans::GemmProblem;
  /// Token ids [first, first + words) of w.
  struct Panel {
    int64_t first, words;
    std::optional<CudaLaunch> widen;
  };

  Status addRowLaunches(int64_t stride);
  Status addChunks(const KernelRequest &request, int64_t stride);
  Status addPanels();
  Status addProducts();
  Status addProduct(const Problem &problem);
  /// All panels except the first accumulate into the gradient.
  Problem hiddenGradient(const HeadChunk &chunk, const Panel &panel) const {
    return plan.hiddenGradientProduct(chunk.rows, panel.words, panel.first > 0);
  }
  StatusOr<const void *> wordsOf(const Panel &panel, const HeadBuffers &buffers,
                                 const CudaKernelArgs &args) const;

  CudaContext &context;
  CudaLaunch findLabelled, clear;
  std::vector<HeadChunk> chunks;
  std::vector<Panel> panels;
  std::map<Problem, std::unique_ptr<CudaGemm>> products;
};

} // namespace qlora::cuda

#endif // QLORA_RUNTIME_KERNELS_CUDA_HEADCHUNKS_H
