// SPDX-License-Identifier: MIT

// add-noise: adds NEFTune noise (Jain et al., 2023) to the output of the input
// embeddings' module, as transformers does. See Passes.td for an example.

#include "compiler/Passes.h"
#include "dialects/Model/Model.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_ADDNOISE
#include "compiler/Passes.h.inc"
} // namespace qlora

/// Id of the noise's random numbers. Dropout has smaller ids: adapters' count
/// from 1, the model's own from 2^24.
static constexpr int64_t kNoiseId = 1 << 25;

namespace {
class AddNoisePass : public qlora::impl::AddNoiseBase<AddNoisePass> {
public:
  using AddNoiseBase::AddNoiseBase;

private:
  void runOnOperation() override;
};
} // namespace

/// Returns the last op of the embedding's module, such as Gemma's scale.
static Operation *endOfModule(EmbeddingOp embedding) {
  if (!embedding->hasOneUse())
    return embedding;
  auto scale = dyn_cast<ScaleOp>(*embedding->user_begin());
  return scale && scale.getRounded() ? scale.getOperation() : embedding;
}

static void addNoise(EmbeddingOp embedding, double alpha) {
  Operation *end = endOfModule(embedding);
  Value x = end->getResult(0);
  OpBuilder builder(end->getContext());
  builder.setInsertionPointAfter(end);
  const double magnitude = alpha / std::sqrt(double(columnsOf(x)));
  auto noise = NoiseOp::create(builder, end->getLoc(), x.getType(), x,
                               llvm::APFloat(magnitude), kNoiseId);
  x.replaceAllUsesExcept(noise, noise);
  copyStage(end, noise);
}

void AddNoisePass::runOnOperation() {
  if (alpha == 0)
    return;
  for (auto function : getOperation().getOps<func::FuncOp>()) {
    auto embeddings = llvm::filter_to_vector(
        function.getOps<EmbeddingOp>(),
        [](EmbeddingOp embedding) { return embedding.embedsTokens(); });
    if (embeddings.empty()) {
      function.emitError("neftune_noise_alpha: the model has no embedding of "
                         "the input 'ids'; remove the option");
      return signalPassFailure();
    }
    for (EmbeddingOp embedding : embeddings)
      addNoise(embedding, alpha);
  }
}
