// SPDX-License-Identifier: MIT

// compress-gradients: reduces gradients over ranks with fewer bits.
//
// Replaces the `train.all_reduce`s of parameters by ops on the flat arenas.
// They send rounded values or codes of rows (RowwiseReduction.cpp), or low-rank
// factors of each matrix (PowerSgdReduction.cpp). The ops of a bucket are built
// in stages (GradientReduction.h). Stage s of bucket i runs after bucket i + s
// is complete, so that the compute queue does not wait for communication. The
// row of statistics is reduced without compression.

#include "compiler/Exchange/GradientReduction.h"
#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"
#include "dialects/Program/Program.h"
#include "dialects/Train/Train.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

namespace qlora {
#define GEN_PASS_DEF_COMPRESSGRADIENTS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

struct ExchangeMarks : OpBuilder::Listener {
  void notifyOperationInserted(Operation *op, OpBuilder::InsertPoint) override {
    setPhase(op, StepPhase::Exchange);
  }
};

class CompressGradientsPass
    : public qlora::impl::CompressGradientsBase<CompressGradientsPass> {
public:
  using CompressGradientsBase::CompressGradientsBase;

private:
  using Ranges = SmallVector<GradientRange>;

  void runOnOperation() override;
  LogicalResult checkWhole();
  LogicalResult planForm();
  std::unique_ptr<GradientReduction> sumsOf(ArrayRef<GradientRange> ranges);
  void compress(StepOp step);
  void record();

  LowRankPlan lowRank;
  unsigned stages = 0; ///< number of stages of the form
};

} // namespace

std::unique_ptr<GradientReduction>
CompressGradientsPass::sumsOf(ArrayRef<GradientRange> ranges) {
  if (form == "bf16")
    return makeRoundedReduction(ranges);
  if (form == "int8")
    return makeCodedReduction(ranges, ranks, feedback);
  return makePowerSgdReduction(lowRank, getOperation(), ranges, ranks,
                               feedback);
}

/// Places stage s of bucket i after bucket i + s is complete.
void CompressGradientsPass::compress(StepOp step) {
  Block &body = step.getBody().front();
  ExchangeMarks marks;
  OpBuilder end = OpBuilder::atBlockEnd(&body, &marks);
  std::vector<Ranges> buckets;
  SmallVector<OpBuilder> places; ///< after the last gradient of each bucket
  SmallVector<AllReduceOp> replaced;
  for (auto sum : body.getOps<AllReduceOp>()) {
    buckets.resize(std::max(buckets.size(), size_t(sum.getBucket() + 1)));
    places.resize(buckets.size(), end);
    places.back().setInsertionPointAfter(sum);
    buckets.back().push_back(
        {int64_t(sum.getOffset()), int64_t(sum.getElements())});
    if (sum.getOffset() == 0)
      sum.setElements(kFlatColumns); // statistics, uncompressed
    else
      replaced.push_back(sum);
  }
  std::vector<std::unique_ptr<GradientReduction>> sums;
  for (const Ranges &ranges : buckets)
    sums.push_back(sumsOf(ranges));
  for (size_t at = 0; at + 1 < buckets.size() + stages; ++at)
    for (unsigned stage = 0; stage < stages && stage <= at; ++stage)
      if (at - stage < buckets.size())
        sums[at - stage]->build(at < places.size() ? places[at] : end, stage);
  for (AllReduceOp sum : replaced)
    sum.erase();
}

/// Refuses sharded gradients. Every form sums over all ranks, but a shard must
/// be summed only over the ranks with the same shard: other ranks have
/// gradients of other elements in these rows.
LogicalResult CompressGradientsPass::checkWhole() {
  for (auto parameter : getOperation().getOps<ParameterOp>())
    if (parameter.getTrainable() && updateKindOf(parameter).isSharded)
      return parameter.emitError("--ddp-comm-hook ")
             << form << ": --parallel shards the gradient of '"
             << partsOf(parameter).front().name
             << "', and compressed sums need all of it on each rank. Fix: "
                "--ddp-comm-hook no";
  return success();
}

/// Sets `stages`, and for power_sgd the module's low-rank plan.
LogicalResult CompressGradientsPass::planForm() {
  ModuleOp module = getOperation();
  const bool isLowRank = form == "power_sgd";
  stages = form == "bf16"   ? kRoundedStages
           : form == "int8" ? kCodedStages
           : isLowRank      ? kLowRankStages
                            : 0;
  if (stages == 0 || ranks < 1 || rank < 1)
    return module.emitError("compress-gradients expects the form bf16, int8 or "
                            "power_sgd, at least one rank and one row, but got "
                            "'")
           << form << "', " << int64_t(ranks) << " and " << int64_t(rank);
  if (!isLowRank)
    return success();
  if (!module->hasAttr("train.layout") || !module->hasAttr("train.offsets"))
    return module.emitError("expects the attributes train.layout and "
                            "train.offsets, which bucket-gradients writes");
  module->setAttr(kApproximationRankAttr,
                  Builder(&getContext()).getI64IntegerAttr(rank));
  lowRank = planLowRank(module, planUpdate(module));
  return checkLowRank(module, lowRank);
}

void CompressGradientsPass::record() {
  MetadataBuilder facts(&getContext());
  facts.add("form", StringRef(form)).add("ranks", int64_t(ranks));
  if (form == "power_sgd") {
    int64_t elements = 0, sent = 0, matrices = 0;
    for (const SummedTensor &tensor : lowRank.tensors) {
      elements += tensor.elements();
      sent += tensor.basis ? rank * (tensor.rows + tensor.columns)
                           : tensor.elements();
      matrices += tensor.basis.has_value();
    }
    facts.add("rank", int64_t(rank))
        .add("matrices", matrices)
        .add("elements", elements)
        .add("sent_elements", sent);
  }
  recordDecision(getOperation(), getArgument(), facts.get());
}

void CompressGradientsPass::runOnOperation() {
  if (failed(checkWhole()) || failed(planForm()))
    return signalPassFailure();
  for (StepOp step : getOperation().getOps<StepOp>())
    if (step.getKind() == StepKind::Accumulate)
      compress(step);
  record();
}
