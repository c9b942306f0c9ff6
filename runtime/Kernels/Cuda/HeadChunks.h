// SPDX-License-Identifier: MIT

// Common code of the LM head kernels on CUDA. They gather labelled rows in
// chunks, and multiply each chunk with w to get logits. For gradients, they
// multiply the logits' gradient with w and the gathered rows. The device finds
// the labelled rows. The host enqueues chunks for an upper bound of their
// number (labelledRows). All other choices are made when the kernel is
// prepared.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_HEADCHUNKS_H
#define QLORA_RUNTIME_KERNELS_CUDA_HEADCHUNKS_H

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/Kernels/Cuda/Gemm.h"

namespace qlora::cuda {

/// Threads per block of Device/Head*.cu.
inline constexpr unsigned kHeadThreads = 512;

/// The range [first, first + rows) of the list of labelled rows.
struct HeadChunk {
  int64_t first = 0, rows = 0;
  CudaLaunch gather;
  std::optional<CudaLaunch> cap, scatter;
};

/// Addresses for one call: operands, then buffers in the workspace. Null if the
/// op or the call lacks the buffer. Gradients are scattered to `dhidden`.
struct HeadBuffers {
  void *hidden, *w, *targets, *dhidden, *dw;
  void *labelled, *logits, *gathered, *panel, *gradient, *scratch;
};

class HeadChunks {
public:
  HeadChunks(const KernelRequest &request, CudaContext &context)
      : plan(plans::CudaHeadPlan::of(request)), context(context) {}
  /// Prepares all launches. `stride` is the row stride of dhidden in elements.
  Status prepare(const KernelRequest &request, int64_t stride);

  /// Returns the number of chunks that hold `labelledRows` labelled rows.
  size_t countFor(int64_t labelledRows) const {
    return static_cast<size_t>(
        blocksOf(std::min(labelledRows, plan.rows), plan.chunkRows));
  }
  size_t count() const { return chunks.size(); }
  const HeadChunk &operator[](size_t i) const { return chunks[i]; }

  /// Prepares a launch with one block per row of a chunk.
  StatusOr<CudaLaunch> prepareRows(const HeadChunk &chunk,
                                   const std::string &symbol,
                                   std::span<const int64_t> constants) const {
    return CudaLaunch::prepare(context, symbol, {chunk.rows, kHeadThreads},
                               constants);
  }
  /// Lists the labelled rows. If `correct` is not null, clears it for all rows.
  Status listLabelled(void *correct, const HeadBuffers &buffers,
                      const CudaKernelArgs &args) const;
  /// Zeroes the rows of dhidden that have no label.
  Status clearUnlabelled(const HeadBuffers &buffers,
                         const CudaKernelArgs &args) const;
  /// Gathers a chunk's rows to `gathered`; computes uncapped logits.
  Status computeLogits(const HeadChunk &chunk, const HeadBuffers &buffers,
                       const CudaKernelArgs &args) const;
  Status capLogits(const HeadChunk &chunk, const HeadBuffers &buffers,
                   const CudaKernelArgs &args) const;
  /// Passes a chunk's logits to the observer, if there is one. The caller must
  /// set vocab and piece of `block`.
  Status observe(const HeadChunk &chunk, LogitsBlock block,
                 const HeadBuffers &buffers, const CudaKernelArgs &args) const;
  /// Computes the chunk's rows of dhidden from the logits' gradient, and adds
  /// the chunk's contribution to dw.
  Status computeGradients(const HeadChunk &chunk, const HeadBuffers &buffers,
                          const CudaKernelArgs &args) const;

  /// Sets the addresses of the buffers in the workspace.
  void place(void *workspace, HeadBuffers &buffers) const;

  const plans::CudaHeadPlan plan;

private:
  using Problem = plans::GemmProblem;
  /// Rows of w for the token ids [first, first + words).
  struct Panel {
    int64_t first, words;
    std::optional<CudaLaunch> widen;
  };

  Status addRowLaunches(int64_t stride);
  Status addChunks(const KernelRequest &request, int64_t stride);
  Status addPanels();
  Status addProducts();
  Status addProduct(const Problem &problem);
  /// All panels except the first add to the gradient.
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
