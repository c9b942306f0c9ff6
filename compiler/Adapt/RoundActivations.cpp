// SPDX-License-Identifier: MIT

// round-activations: matmuls with integer weights also round their input.
//
//   %y = model.linear %x, %w {module = "…q_proj"}
//
// with %w of `!model.quantized<llm_int8, 64, false>` becomes
//
//   %y = model.linear %x, %w {int8_threshold = 6.0, module = "…q_proj"}

#include "compiler/Passes.h"

#include "runtime/Kernels/Math/Stored.h"

using namespace mlir;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_ROUNDACTIVATIONS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class RoundActivationsPass
    : public qlora::impl::RoundActivationsBase<RoundActivationsPass> {
public:
  using RoundActivationsBase::RoundActivationsBase;

private:
  void runOnOperation() override;
};
} // namespace

static bool hasIntegerWeight(WeightedMatmul product) {
  auto stored =
      dyn_cast<QuantizedType>(product.getWeightType().getElementType());
  return stored && qlora::storedFormat(stored.getFormat())->isInteger();
}

void RoundActivationsPass::runOnOperation() {
  bool isAny = false;
  WalkResult walked = getOperation().walk([&](WeightedMatmul product) {
    if (!product.getModule() || !hasIntegerWeight(product))
      return WalkResult::advance();
    isAny = true;
    if (product.roundInput(threshold))
      return WalkResult::advance();
    product.emitError("--llm-int8-activations int8: '")
        << *product.getModule()
        << "' has LLM.int8 weights, but only linears support int8 activations; "
           "use --llm-int8-activations dequantized";
    return WalkResult::interrupt();
  });
  if (walked.wasInterrupted())
    return signalPassFailure();
  if (!isAny) {
    getOperation().emitError(
        "--llm-int8-activations int8 needs LLM.int8 weights, but no linear has "
        "them; add --load-in-8bit, or remove the option");
    signalPassFailure();
  }
}
