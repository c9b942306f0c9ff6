// SPDX-License-Identifier: MIT

// shard-vocabulary: tables of words lie in pieces on the ranks, and each rank
// looks up, or multiplies with, what it has for the rows of all of them.
//
//   %x = model.embedding %ids, %w : (tensor<2x32xi32>, tensor<1000x64xbf16>) ...
//
// becomes, for two ranks,
//
//   %p   = model.weight_piece @w : tensor<500x64xbf16>
//   %all = model.all_gather %ids : (tensor<2x32xi32>) -> tensor<4x32xi32>
//   %y   = model.embedding %all, %p {words = 1000}
//   %x   = model.reduce_scatter %y
//
// and an output head becomes its parts and their merger (ModelShardOps.td). What
// travels are rows of tokens and not the table, which would be larger than any
// layer, and no rank has it whole (Shoeybi et al., 2019). Of many ranks with many
// tokens the rows are more than the table: then it is left to assign-shards.

#include "compiler/Decisions.h"
#include "compiler/Graph/HostTables.h"
#include "compiler/Passes.h"
#include "dialects/Program/Program.h"
#include "dialects/Train/Train.h"

#include "runtime/ABI/module.h"

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
};
} // namespace

/// The parameter of a table that can be divided by rows; null: none.
static ParameterOp dividedParameter(TableOp op,
                                    const llvm::StringSet<> &onHost) {
  auto weight = op.getTableMutable().get().getDefiningOp<WeightOp>();
  if (!weight || !op.canDivideTable() ||
      onHost.contains(weight.getParameter()))
    return {};
  auto parameter = SymbolTable::lookupNearestSymbolFrom<ParameterOp>(
      weight, weight.getParameterAttr());
  const bool isPlain =
      !isa<QuantizedType>(parameter.getTensorType().getElementType());
  return isPlain && parameter.getFile() && !parameter.getTrainable()
             ? parameter
             : ParameterOp();
}

/// Rows of a piece: as few as hold the table, of whole cache lines.
static RankedTensorType pieceOf(RankedTensorType table, int64_t shards) {
  const int64_t rowBytes = tensorBytes(table) / table.getDimSize(0);
  int64_t rows = llvm::divideCeil(table.getDimSize(0), shards);
  while (rows * rowBytes % QLORA_PIECE_ALIGNMENT)
    ++rows;
  return table.clone({rows, table.getDimSize(1)});
}

/// Makes the ops of a part in the place of `op`; false, and nothing, where what
/// they need for the rows of all ranks is more than the whole table.
static bool divide(TableOp op, ParameterOp parameter, int64_t shards,
                   bool always) {
  RankedTensorType type = pieceOf(parameter.getTensorType(), shards);
  const auto before = parameter.getPieceAttr();
  parameter.setPiece(tensorBytes(type));
  OpBuilder builder(op);
  auto piece = WeightPieceOp::create(builder, parameter.getLoc(), type,
                                     parameter.getSymName());
  SmallVector<Value> values = op.divideTable(builder, piece, shards);
  SmallVector<Operation *> made;
  int64_t bytes = 0;
  for (Operation *each = piece; each != op; each = each->getNextNode()) {
    copyStage(op, each);
    made.push_back(each);
    if (each != piece)
      for (Value result : each->getResults())
        bytes += tensorBytes(tensorOf(result));
  }
  if (always || bytes <= tensorBytes(parameter.getTensorType())) {
    op->replaceAllUsesWith(values);
    op->erase();
    return true;
  }
  for (Operation *each : llvm::reverse(made))
    each->erase();
  parameter.setPieceAttr(before);
  return false;
}

void ShardVocabularyPass::runOnOperation() {
  if (form != "auto" && form != "true" && form != "false") {
    getOperation().emitError("expects auto, true or false as form, but got '")
        << form << "'";
    return signalPassFailure();
  }
  if (shards <= 1 || form == "false")
    return;
  llvm::StringSet<> onHost;
  if (offloadTables)
    onHost = hostTables(getOperation());
  for (auto step : getOperation().getOps<StepOp>()) {
    SmallVector<TableOp> tables(step.getBody().getOps<TableOp>());
    for (TableOp op : tables)
      if (ParameterOp parameter = dividedParameter(op, onHost))
        tablesDivided += divide(op, parameter, shards, form == "true");

  }
  getOperation()->setAttr(program::kShardsAttr,
                          Builder(&getContext()).getI64IntegerAttr(shards));
}
