// SPDX-License-Identifier: MIT

// shard-trainable: shards trainable weights over ranks, with their gradients
// and optimizer states.
//
//   model.parameter @w : tensor<96x64xf32> {file = "...", trainable}
//
// becomes, for two ranks,
//
//   model.parameter @w : tensor<96x64xf32>
//       {file = "...", trainable, piece = 12288}        // 96 * 64 * 4 / 2
//
// The pass only sets `piece`, before a step exists. All flat arenas then hold
// the same shards, so updates need no change.
// build-train-step reduce-scatters each gradient, and place-frozen-weights
// gathers the weight where it is used (ZeRO stages 2 and 3, Rajbhandari et al.,
// 2020).
//
// Vectors are not sharded: they are small, and a collective has a cost. Other
// parameters are not sharded if their initial values are computed from other
// weights, or if a rank uses only a range of them.

#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"
#include "dialects/Program/Program.h"
#include "dialects/Train/Optimizers.h"

#include "runtime/ABI/module.h"

#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_SHARDTRAINABLE
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class ShardTrainablePass
    : public qlora::impl::ShardTrainableBase<ShardTrainablePass> {
public:
  using ShardTrainableBase::ShardTrainableBase;

private:
  void runOnOperation() override;
  bool canBeDivided(model::ParameterOp parameter) const;

  llvm::StringSet<> usedInParts;
};
} // namespace

bool ShardTrainablePass::canBeDivided(model::ParameterOp parameter) const {
  return parameter.getTrainable() && parameter.getTensorType().getRank() >= 2 &&
         (adapters ? parameter.getInit() != "computed"
                   : parameter.getFile().has_value()) &&
         !usedInParts.contains(parameter.getSymName());
}

/// Fails if the optimizer needs whole tensors, or evaluates other weights than
/// it trains: shards are not enough for these.
static LogicalResult checkOptimizer(model::ParameterOp parameter) {
  const train::Optimizer *optimizer =
      train::findOptimizer(parameter.getOptimizer());
  if (!optimizer || (!optimizer->isByTensor && optimizer->average.empty()))
    return success();
  return parameter.emitError("--parallel: '")
         << optimizer->name << "' cannot update shards, but '"
         << parameter.getSymName()
         << "' is sharded; use --optim adamw_torch or lion, or remove fsdp "
            "and zero2";
}

void ShardTrainablePass::runOnOperation() {
  if (ranks < 1) {
    getOperation().emitError("expects at least one rank to shard trainable "
                             "parameters, but got ")
        << int64_t(ranks);
    return signalPassFailure();
  }
  if (ranks == 1)
    return;
  usedInParts.clear();
  getOperation().walk([&](WeightOp weight) {
    if (weight.getPart())
      usedInParts.insert(weight.getParameter());
  });
  int64_t weights = 0, wholeBytes = 0, pieceBytes = 0;
  for (auto parameter : getOperation().getOps<model::ParameterOp>()) {
    if (!canBeDivided(parameter))
      continue;
    if (failed(checkOptimizer(parameter)))
      return signalPassFailure();
    const int64_t bytes = tensorBytes(parameter.getTensorType());
    const int64_t piece = llvm::alignTo(llvm::divideCeil(bytes, ranks),
                                        QLORA_PIECE_ALIGNMENT);
    parameter.setPiece(piece);
    ++weights;
    wholeBytes += bytes;
    pieceBytes += piece;
  }
  if (weights == 0)
    return;
  Builder builder(&getContext());
  setAxis(getOperation(), &qlora_mesh::zero2, ranks);
  recordDecision(getOperation(), getArgument(),
                 MetadataBuilder(&getContext())
                     .add("ranks", int64_t(ranks))
                     .add("weights", weights)
                     .add("whole_bytes", wholeBytes)
                     .add("piece_bytes", pieceBytes)
                     .get());
}
