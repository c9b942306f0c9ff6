// SPDX-License-Identifier: MIT

// What the kernels of the head have in common on CUDA: rows that have a label,
// gathered in chunks, their products with w, and with a gradient the ones back.
// Which rows those are is only known on the device; how many there are at most
// the host says (labelledRows), so chunks that would be empty are not enqueued.
// All else is chosen when prepared.

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

/// Addresses of a run: of the op, then of the workspace; null where the op or
/// the launch has none. `dhidden` is what gradients are scattered to.
struct HeadBuffers {
  void *hidden, *w, *targets, *dhidden, *dw;
  void *labelled, *logits, *gathered, *panel, *gradient, *scratch;
};

class HeadChunks {
public:
  HeadChunks(const KernelRequest &request, CudaContext &context)
      : plan(plans::CudaHeadPlan::of(request)), context(context) {}
  /// `stride`: elements from one row of `dhidden` to the next.
  Status prepare(const KernelRequest &request, int64_t stride);

  /// So many of the chunks hold the rows that have labels, at most.
  size_t countFor(int64_t labelledRows) const {
    return static_cast<size_t>(
        blocksOf(std::min(labelledRows, plan.rows), plan.chunkRows));
  }
  size_t count() const { return chunks.size(); }
  const HeadChunk &operator[](size_t i) const { return chunks[i]; }

  /// Launches of one block for each row of a chunk.
  StatusOr<CudaLaunch> prepareRows(const HeadChunk &chunk,
                                   const std::string &symbol,
                                   std::span<const int64_t> constants) const {
    return CudaLaunch::prepare(context, symbol, {chunk.rows, kHeadThreads},
                               constants);
  }
  /// The list of the labelled rows, of which `correct` is cleared, if not null.
  Status listLabelled(void *correct, const HeadBuffers &buffers,
                      const CudaKernelArgs &args) const;
  /// Zeros for the rows of dhidden that have no label.
  Status clearUnlabelled(const HeadBuffers &buffers,
                         const CudaKernelArgs &args) const;
  /// The rows of a chunk to `gathered`, and their logits without the cap.
  Status computeLogits(const HeadChunk &chunk, const HeadBuffers &buffers,
                       const CudaKernelArgs &args) const;
  Status capLogits(const HeadChunk &chunk, const HeadBuffers &buffers,
                   const CudaKernelArgs &args) const;
  /// Shows the logits of a chunk's rows to the observer, if there is one; of
  /// `block` vocab and piece are given.
  Status observe(const HeadChunk &chunk, LogitsBlock block,
                 const HeadBuffers &buffers, const CudaKernelArgs &args) const;
  /// From what took the logits' place to the rows of dhidden, and to dw.
  Status computeGradients(const HeadChunk &chunk, const HeadBuffers &buffers,
                          const CudaKernelArgs &args) const;

  /// The workspace's addresses.
  void place(void *workspace, HeadBuffers &buffers) const;

  const plans::CudaHeadPlan plan;

private:
  using Problem = plans::GemmProblem;
  /// Words [first, first + words) of w.
  struct Panel {
    int64_t first, words;
    std::optional<CudaLaunch> widen;
  };

  Status addRowLaunches(int64_t stride);
  Status addChunks(const KernelRequest &request, int64_t stride);
  Status addPanels();
  Status addProducts();
  Status addProduct(const Problem &problem);
  /// Panels but the first add to the gradient.
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
