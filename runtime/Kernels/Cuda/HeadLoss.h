// SPDX-License-Identifier: MIT

// head_loss and head_loss_grad: the rows that have a label, gathered in
// chunks; each chunk is a product, one launch of Device/HeadLoss.cu, and with
// a gradient two more products. Which rows those are is only known on the
// device; how many there are at most the host says (labelledRows), so chunks
// that would be empty are not enqueued. All else is chosen when prepared.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_HEADLOSS_H
#define QLORA_RUNTIME_KERNELS_CUDA_HEADLOSS_H

#include <map>
#include <tuple>

#include "runtime/Kernels/Cuda/Gemm.h"

namespace qlora::cuda {

class HeadLoss final : public CudaKernel {
public:
  static PreparedCudaKernel prepare(const KernelRequest &request,
                                    CudaContext &context);
  Status enqueue(const CudaKernelArgs &args) override;

private:
  using Plan = plans::CudaHeadPlan;
  enum class Product {
    kLogits,
    kHiddenGradient,
    kAddedHiddenGradient,
    kWeight
  };
  /// Which product, of how many rows and words.
  using Key = std::tuple<Product, int64_t, int64_t>;

  /// Addresses by name; null where the op or the launch has none.
  struct Operands {
    void *hidden, *w, *targets, *loss, *count, *correct;
    void *dhidden = nullptr, *dw = nullptr;
    // The parts of the workspace.
    void *rowLosses, *labelled, *logits, *gathered, *panel, *gradient, *scratch;
  };
  /// Labelled rows [first, first + rows).
  struct Chunk {
    int64_t first = 0, rows = 0;
    CudaLaunch gather, softmax, scatter;
  };
  /// Words [first, first + words) of the vocabulary.
  struct Panel {
    int64_t first, words;
    std::optional<CudaConversion> widen;
  };

  HeadLoss(const KernelRequest &request, CudaContext &context);
  Status addRowLaunches(const KernelRequest &request);
  Status addChunks(const KernelRequest &request);
  Status addPanels();
  Status addProducts();
  Status addProduct(Product product, int64_t rows, int64_t words);
  plans::GemmProblem problemOf(Product product, int64_t rows,
                               int64_t words) const;
  const CudaGemm &gemm(Product product, int64_t rows, int64_t words) const {
    return *products.at({product, rows, words});
  }

  Operands operandsOf(const CudaKernelArgs &args) const;
  StatusOr<const void *> panelOf(const Panel &panel, const Operands &operands,
                                 const CudaKernelArgs &args) const;
  Status enqueueChunk(const Chunk &chunk, const Operands &operands,
                      const CudaKernelArgs &args) const;
  Status enqueueGradients(const Chunk &chunk, const Operands &operands,
                          const CudaKernelArgs &args) const;
  Status observe(const Chunk &chunk, const Operands &operands,
                 const CudaKernelArgs &args) const;

  CudaContext &context;
  Plan plan;
  bool hasWeightGradient = false;
  CudaLaunch findLabelled, clearUnlabelled;
  std::vector<Chunk> chunks;
  std::vector<CudaLaunch> sums; ///< by the number of chunks computed
  std::vector<Panel> panels;
  std::map<Key, std::unique_ptr<CudaGemm>> products;
};

} // namespace qlora::cuda

#endif // QLORA_RUNTIME_KERNELS_CUDA_HEADLOSS_H
