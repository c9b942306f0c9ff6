// SPDX-License-Identifier: MIT

// shard-vocabulary: shards token tables over ranks. Each rank looks up, or
// multiplies by, its rows for the tokens of all ranks.
//
//   %x = model.embedding %ids, %w : (tensor<2x32xi32>, tensor<1000x64xbf16>)
//   ...
//
// becomes, for two ranks,
//
//   %p   = model.weight_piece @w : tensor<500x64xbf16>
//   %all = model.all_gather %ids : (tensor<2x32xi32>) -> tensor<4x32xi32>
//   %y   = model.embedding %all, %p {words = 1000}
//   %x   = model.reduce_scatter %y
//
// and an LM head becomes ops on its shards and their merger (ModelShardOps.td).
// Ranks send rows of tokens instead of gathering the table, which is larger
// than a layer (Shoeybi et al., 2019). With many ranks and tokens, the rows
// have more bytes than the table. Then place-frozen-weights shards and gathers
// the table.
//
// If an axis of slices shards tables, they become slices. Its ranks may have
// the same rows, as tensor-parallel ranks do (shard-matmuls): then only partial
// results of the head are gathered, and sums are all-reduced.
//
//   %y   = model.embedding %ids, %w {words = 1000}    // w [500, 64], a shard
//   %x   = model.all_sum %y

#include "compiler/Optimize/OpCost.h"
#include "compiler/Partition/Reshard.h"
#include "compiler/Partition/WeightShards.h"
#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"
#include "compiler/Place/HostTables.h"
#include "dialects/Program/Program.h"
#include "dialects/Train/Train.h"

#include "runtime/ABI/module.h"
#include "runtime/Options/MeshAxes.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

namespace qlora {
#define GEN_PASS_DEF_SHARDVOCABULARY
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class ShardVocabularyPass
    : public qlora::impl::ShardVocabularyBase<ShardVocabularyPass> {
public:
  using ShardVocabularyBase::ShardVocabularyBase;

private:
  void runOnOperation() override;
  void sliceTables(const llvm::StringSet<> &onHost, const MeshAxis &axis);
};
} // namespace

/// Returns whether this is a frozen weight of a format that is stored by rows.
static bool canShardRows(ParameterOp parameter) {
  return !isa<QuantizedType>(parameter.getTensorType().getElementType()) &&
         parameter.getFile() && !parameter.getTrainable();
}

/// Returns the parameter of a table that can be sharded by rows; else null.
static ParameterOp dividedParameter(TableOp op,
                                    const llvm::StringSet<> &onHost) {
  auto weight = op.getTableMutable().get().getDefiningOp<WeightOp>();
  if (!weight || !op.canShardTable() || onHost.contains(weight.getParameter()))
    return {};
  auto parameter = SymbolTable::lookupNearestSymbolFrom<ParameterOp>(
      weight, weight.getParameterAttr());
  return canShardRows(parameter) ? parameter : ParameterOp();
}

/// Returns a shard's type, with the fewest rows that fill whole cache lines.
static RankedTensorType pieceOf(RankedTensorType table, int64_t shards) {
  const int64_t rowBytes = tensorBytes(table) / table.getDimSize(0);
  int64_t rows = llvm::divideCeil(table.getDimSize(0), shards);
  while (rows * rowBytes % QLORA_PIECE_ALIGNMENT)
    ++rows;
  return table.clone({rows, table.getDimSize(1)});
}

/// Replaces `op` by ops on a shard. Returns false and changes nothing if these
/// ops' results for all ranks' rows have more bytes than the table.
static bool divide(TableOp op, ParameterOp parameter, int64_t shards,
                   bool always) {
  RankedTensorType type = pieceOf(parameter.getTensorType(), shards);
  const auto before = parameter.getPieceAttr();
  parameter.setPiece(tensorBytes(type));
  StageCopier stage(op);
  OpBuilder builder(op, &stage);
  auto piece = WeightPieceOp::create(builder, parameter.getLoc(), type,
                                     parameter.getSymName());
  SmallVector<Value> values =
      op.shardTable(builder, piece, shards, Ranks::FSDP);
  int64_t bytes = 0;
  for (Operation *each : llvm::drop_begin(stage.made))
    bytes += resultBytes(each);
  if (always || bytes <= tensorBytes(parameter.getTensorType())) {
    op->replaceAllUsesWith(values);
    op->erase();
    return true;
  }
  for (Operation *each : llvm::reverse(stage.made))
    each->erase();
  parameter.setPieceAttr(before);
  return false;
}

/// Returns whether a table can be sharded by rows: only table ops read it, and,
/// unless `always`, the shards save more bytes than their reductions send.
static bool canSliceTable(ParameterOp parameter, ArrayRef<TableOp> tables,
                          size_t uses, int64_t ranks, bool always) {
  RankedTensorType type = parameter.getTensorType();
  const int64_t bytes = tensorBytes(type);
  return tables.size() == uses && canShardRows(parameter) &&
         !parameter.getSlice() && type.getDimSize(0) % ranks == 0 &&
         llvm::all_of(tables, [&](TableOp op) {
           return op.canShardTable() && (always || resultBytes(op) <= bytes);
         });
}

/// Shards a table over the ranks of an axis.
static void sliceTable(ParameterOp parameter, ArrayRef<TableOp> tables,
                       const MeshAxis &axis, int64_t ranks) {
  sliceParameter(parameter, {0, {parameter.getTensorType().getDimSize(0)}},
                 ranks);
  for (TableOp op : tables) {
    auto weight = cast<WeightOp>(op.getTableMutable().get().getDefiningOp());
    StageCopier stage(op);
    OpBuilder builder(op, &stage);
    auto slice = cast<WeightOp>(builder.clone(*weight));
    slice.getResult().setType(parameter.getTensorType());
    op->replaceAllUsesWith(
        op.shardTable(builder, slice, ranks, static_cast<Ranks>(axis.group)));
    op->erase();
    if (weight->use_empty())
      weight.erase();
  }
}

void ShardVocabularyPass::sliceTables(const llvm::StringSet<> &onHost,
                                      const MeshAxis &axis) {
  const int64_t ranks = model::meshOf(getOperation()).*axis.ranks;
  llvm::MapVector<Attribute, SmallVector<TableOp>> tables;
  llvm::DenseMap<Attribute, size_t> uses;
  for (auto step : getOperation().getOps<StepOp>())
    for (auto weight : step.getBody().getOps<WeightOp>())
      for (OpOperand &use : weight->getUses()) {
        ++uses[weight.getParameterAttr()];
        if (auto op = dyn_cast<TableOp>(use.getOwner());
            op && &op.getTableMutable() == &use)
          tables[weight.getParameterAttr()].push_back(op);
      }
  SymbolTable symbols(getOperation());
  for (auto &[name, ops] : tables) {
    auto parameter = symbols.lookup<ParameterOp>(
        cast<FlatSymbolRefAttr>(name).getValue());
    if (onHost.contains(parameter.getSymName()) ||
        !canSliceTable(parameter, ops, uses[name], ranks, form == "true"))
      continue;
    sliceTable(parameter, ops, axis, ranks);
    tablesDivided += ops.size();
  }
}

void ShardVocabularyPass::runOnOperation() {
  if (form != "auto" && form != "true" && form != "false") {
    getOperation().emitError("expects auto, true or false as form, but got '")
        << form << "'";
    return signalPassFailure();
  }
  const MeshAxis *sharing =
      axisWith(model::meshOf(getOperation()), kSlices | kTables);
  if ((shards <= 1 && !sharing) || form == "false")
    return;
  llvm::StringSet<> onHost;
  if (offloadTables)
    onHost = hostTables(getOperation());
  if (sharing)
    return sliceTables(onHost, *sharing);
  for (auto step : getOperation().getOps<StepOp>()) {
    SmallVector<TableOp> tables(step.getBody().getOps<TableOp>());
    for (TableOp op : tables)
      if (ParameterOp parameter = dividedParameter(op, onHost))
        tablesDivided += divide(op, parameter, shards, form == "true");
  }
  setAxis(getOperation(), &qlora_mesh::fsdp, shards);
}
