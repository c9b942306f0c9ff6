// SPDX-License-Identifier: MIT

// bucket-gradients: orders the flat gradient arena and creates its all-reduces.
//
//   train.accumulate @b, %db : tensor<8192x64xf32>
//   ...                                              // more of the backward
//   train.accumulate @a, %da : tensor<64x64xf32>
//
// becomes, with 1024 elements of statistics before the parameters,
//
//   train.accumulate @b, %db : tensor<8192x64xf32>
//   train.all_reduce 0 offset 0 elements 525312      // 1024 + 8192 * 64
//   ...
//   train.accumulate @a, %da : tensor<64x64xf32>
//   train.all_reduce 1 offset 525312 elements 4096   // 64 * 64
//
// A bucket can be sent while the rest of the backward runs, but nothing hides
// the last one. So buckets get smaller: four have sizes near 4 : 3 : 2 : 1.
//
// Sharded gradients are already reduced over the ranks of a group
// (train.scatter_gradient); their ranges are reduced over the other groups.

#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"
#include "dialects/Program/Program.h"
#include "dialects/Train/Train.h"

#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

namespace qlora {
#define GEN_PASS_DEF_BUCKETGRADIENTS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

/// A range of the gradient arena, in elements.
struct Range {
  int64_t offset = 0;
  int64_t elements = 0;
  bool isOfPieces = false; ///< gradients of fsdp shards
};

/// Parameters whose gradients are sent together, and their ranges: one range
/// for each FlatGroup, whose parameters share update settings.
struct Bucket {
  SmallVector<StringRef> parameters;
  SmallVector<Range> ranges;

  /// Extends the last range if it ends at `offset` and has the same isOfPieces;
  /// else adds a range.
  void add(int64_t offset, int64_t elements, bool isOfPieces) {
    if (ranges.empty() || ranges.back().isOfPieces != isOfPieces ||
        ranges.back().offset + ranges.back().elements != offset)
      ranges.push_back({offset, 0, isOfPieces});
    ranges.back().elements += elements;
  }
};

/// A trainable parameter; elements are rounded up to the alignment.
struct Trained {
  int64_t elements;
  UpdateKind kind;
  int64_t offset = 0; ///< elements
};

class BucketGradientsPass
    : public qlora::impl::BucketGradientsBase<BucketGradientsPass> {
public:
  using BucketGradientsBase::BucketGradientsBase;

private:
  void runOnOperation() override;
  bool isPipeline() { return model::meshOf(getOperation()).pp > 1; }
  LogicalResult findOrder(ArrayRef<StepOp> steps);
  void writeLayout();
  int64_t bucketCount() const;
  SmallVector<Bucket> makeBuckets() const;
  void findRanges(SmallVector<Bucket> &buckets) const;
  ArrayAttr factsOf(ArrayRef<Bucket> buckets);

  /// Parameters in the order in which the backward completes their gradients.
  llvm::MapVector<StringRef, Trained> order;
  SmallVector<FlatGroup> groups;
  int64_t flat = 0; ///< elements of the arena
};

} // namespace

/// Returns the op after which each parameter's gradient is complete.
static llvm::MapVector<StringRef, Operation *> findLastWrites(StepOp step) {
  llvm::MapVector<StringRef, Operation *> last;
  for (auto op : step.getBody().getOps<AccumulateOp>()) {
    last.erase(op.getParameter());
    last[op.getParameter()] = op;
  }
  return last;
}

LogicalResult BucketGradientsPass::findOrder(ArrayRef<StepOp> steps) {
  llvm::StringMap<Trained> trainable;
  for (auto parameter : getOperation().getOps<ParameterOp>())
    if (parameter.getTrainable())
      trainable[parameter.getSymName()] = {flatElements(parameter),
                                           updateKindOf(parameter)};
  // In a pipeline, use the reverse order of declarations on all stages: a stage
  // cannot see when other stages' gradients are complete. A program that only
  // generates has no gradients.
  SmallVector<ParameterOp> declared(getOperation().getOps<ParameterOp>());
  if (isPipeline() || steps.empty())
    for (ParameterOp parameter : llvm::reverse(declared))
      if (parameter.getTrainable())
        order[parameter.getSymName()] = trainable[parameter.getSymName()];
  for (StepOp step : steps) {
    auto lastWrites = findLastWrites(step);
    for (auto [name, op] : lastWrites) {
      auto known = trainable.find(name);
      if (known == trainable.end())
        return op->emitOpError("accumulates a gradient of '")
               << name << "', which is not trainable";
      // All steps share the layout of the first.
      if (step == steps.front() && !isPipeline())
        order[name] = known->second;
    }
    for (ParameterOp parameter : declared)
      if (parameter.getTrainable() && !parameter.getElsewhere() &&
          !lastWrites.contains(parameter.getSymName())) {
        InFlightDiagnostic error =
            parameter.emitOpError("is trainable but gets no gradient");
        error.attachNote(step.getLoc()) << "in this step";
        return error;
      }
  }
  return success();
}

void BucketGradientsPass::writeLayout() {
  SmallVector<Attribute> names;
  SmallVector<int64_t> offsets;
  groups = flatGroups(getOperation());
  for (const FlatGroup &group : groups) {
    int64_t offset = (1 + group.row) * kFlatColumns;
    for (auto &[name, trained] : order) {
      if (trained.kind != group.kind)
        continue;
      trained.offset = offset;
      names.push_back(FlatSymbolRefAttr::get(&getContext(), name));
      offsets.push_back(offset);
      offset += trained.elements;
    }
  }
  flat = flatElements(getOperation());
  Builder builder(&getContext());
  getOperation()->setAttr("train.layout", builder.getArrayAttr(names));
  getOperation()->setAttr("train.offsets",
                          builder.getDenseI64ArrayAttr(offsets));
  getOperation()->setAttr("train.flat_elements",
                          builder.getI64IntegerAttr(flat));
}

/// Returns the number of buckets, whose sizes are as count : ... : 2 : 1. Two
/// buckets may have any size. If there are more, each except the last must have
/// at least minBytes.
int64_t BucketGradientsPass::bucketCount() const {
  int64_t most = std::min<int64_t>(gradientBuckets, order.size());
  int64_t count = std::min<int64_t>(2, most);
  while (count < most &&
         2 * 4 * flat / ((count + 1) * (count + 2) / 2) >= minBytes)
    ++count;
  return count;
}

SmallVector<Bucket> BucketGradientsPass::makeBuckets() const {
  int64_t count = bucketCount(), parts = count * (count + 1) / 2;
  SmallVector<Bucket> buckets(1);
  int64_t end = kFlatColumns; // elements assigned so far, with the statistics
  int64_t left = order.size();
  // Elements planned for all buckets up to and including the current one.
  int64_t target = flat * count / parts;
  for (auto [name, trained] : order) {
    int64_t later = count - buckets.size();
    // Start the next bucket if less than half of the parameter fits, or if only
    // one parameter is left for each later bucket.
    bool full = end + trained.elements / 2 > target || left <= later;
    if (later && full && !buckets.back().parameters.empty()) {
      target += flat * later / parts;
      buckets.emplace_back();
    }
    buckets.back().parameters.push_back(name);
    end += trained.elements;
    --left;
  }
  findRanges(buckets);
  return buckets;
}

/// Sets the buckets' ranges. The first bucket includes the statistics, and the
/// last bucket the padding of each group's last row.
void BucketGradientsPass::findRanges(SmallVector<Bucket> &buckets) const {
  buckets.front().add(0, kFlatColumns, /*isOfPieces=*/false);
  for (const FlatGroup &group : groups) {
    int64_t end = (1 + group.row) * kFlatColumns;
    for (Bucket &bucket : buckets)
      for (StringRef name : bucket.parameters)
        if (const Trained &trained = order.find(name)->second;
            trained.kind == group.kind) {
          bucket.add(trained.offset, trained.elements, group.kind.isSharded);
          end = trained.offset + trained.elements;
        }
    const int64_t filled = (1 + group.row + group.rows) * kFlatColumns - end;
    if (filled)
      buckets.back().add(end, filled, group.kind.isSharded);
  }
}

/// Inserts each bucket's collective after its last gradient, in bucket order.
/// In a pipeline all are inserted after the last gradient.
static void insertCollectives(StepOp step, ArrayRef<Bucket> buckets,
                              bool isPipeline) {
  auto lastWrites = findLastWrites(step);
  Operation *after = isPipeline ? &step.getBody().front().back() : nullptr;
  auto advance = [&](Operation *op) {
    if (op && (!after || after->isBeforeInBlock(op)))
      after = op;
  };
  // Accumulated results are the statistics, which the first bucket includes.
  for (auto result : step.getBody().getOps<ResultOp>())
    if (result.getAccumulate())
      advance(result);
  for (auto [number, bucket] : llvm::enumerate(buckets)) {
    for (StringRef parameter : bucket.parameters)
      advance(lastWrites[parameter]);
    OpBuilder builder(step.getContext());
    builder.setInsertionPointAfter(after);
    for (const Range &range : bucket.ranges) {
      after = AllReduceOp::create(builder, after->getLoc(), number,
                                  range.offset, range.elements,
                                  range.isOfPieces);
      setPhase(after, StepPhase::Exchange);
    }
  }
}

/// Returns metadata of each bucket.
ArrayAttr BucketGradientsPass::factsOf(ArrayRef<Bucket> buckets) {
  SmallVector<Attribute> facts;
  for (const Bucket &bucket : buckets) {
    int64_t elements = 0;
    for (const Range &range : bucket.ranges)
      elements += range.elements;
    facts.push_back(MetadataBuilder(&getContext())
                        .add("offset_bytes", 4 * bucket.ranges.front().offset)
                        .add("bytes", 4 * elements)
                        .add("parameters", bucket.parameters.size())
                        .add("starts_after", bucket.parameters.back())
                        .get());
  }
  return ArrayAttr::get(&getContext(), facts);
}

void BucketGradientsPass::runOnOperation() {
  order.clear();
  if (gradientBuckets < 1) {
    getOperation().emitError("expects at least one bucket, but got ")
        << int64_t(gradientBuckets);
    return signalPassFailure();
  }
  SmallVector<StepOp> steps;
  for (auto step : getOperation().getOps<StepOp>())
    if (step.getKind() == StepKind::Accumulate)
      steps.push_back(step);
  if (steps.empty() && !onlyGenerates(getOperation())) {
    getOperation().emitError("expects a train.step accumulate");
    return signalPassFailure();
  }
  if (failed(findOrder(steps)))
    return signalPassFailure();
  writeLayout();
  if (steps.empty())
    return;
  SmallVector<Bucket> buckets = makeBuckets();
  for (StepOp step : steps)
    insertCollectives(step, buckets, isPipeline());
  recordDecision(getOperation(), getArgument(), factsOf(buckets));
}
