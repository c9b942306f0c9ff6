// SPDX-License-Identifier: MIT

// Clips gradients, updates each range, and converts weights to averages.

#include "compiler/Differentiate/UpdateStep.h"

#include "dialects/Program/Program.h"
#include "dialects/Train/Optimizers.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

/// Returns the new p and states: results of a row op, of a train.update (with
/// the same operands), or of the ops from Optimizer::build.
static SmallVector<Value> updateOf(OpBuilder &b, const UpdatePiece &piece,
                                   ArrayRef<Value> operands) {
  const Optimizer &optimizer = *piece.kind.optimizer;
  if (optimizer.build)
    return optimizer.build(b, piece, operands);
  OperationState op(b.getUnknownLoc(), optimizer.isByTensor
                                           ? UpdateOp::getOperationName()
                                           : StringRef(optimizer.op));
  op.addOperands(operands);
  for (Value updated : operands.drop_back(2))
    op.addTypes(updated.getType());
  op.addAttribute("rate_scale", b.getF64FloatAttr(piece.kind.rateScale));
  if (piece.kind.isUndecayed)
    op.addAttribute("undecayed", b.getUnitAttr());
  if (optimizer.isByTensor)
    op.addAttribute("kernel", b.getStringAttr(optimizer.op));
  return SmallVector<Value>(b.create(op)->getResults());
}

static void updatePiece(OpBuilder &b, const UpdatePiece &piece, Value scale) {
  Location loc = b.getUnknownLoc();
  auto read = [&](FlatKind kind, RankedTensorType type,
                  FlatSymbolRefAttr parameter, int64_t row,
                  int64_t pieces) -> Value {
    return FlatOp::create(b, loc, type, kind, parameter, false, row, pieces);
  };
  SmallVector<Value> operands = {read(FlatKind::Trainable, piece.type,
                                      piece.parameter, piece.row,
                                      piece.pieces)};
  for (const UpdatePiece::State &state : piece.states)
    operands.push_back(read(FlatKind::State, state.type, {}, state.offset, 1));
  operands.push_back(read(FlatKind::Gradient, piece.type, piece.parameter,
                          piece.row, piece.pieces));
  operands.push_back(scale);
  SmallVector<Value> updated = updateOf(b, piece, operands);
  StoreFlatOp::create(b, loc, FlatKind::Trainable, piece.parameter, updated[0],
                      piece.row, piece.pieces);
  for (auto [state, value] :
       llvm::zip_equal(piece.states, ArrayRef(updated).drop_front()))
    StoreFlatOp::create(b, loc, FlatKind::State, FlatSymbolRefAttr(), value,
                        state.offset);
}

/// Builds the step `average`, which converts trained weights to the averages
/// that evaluation uses, or `continue`, which converts them back.
static void buildSwitch(OpBuilder &builder, const UpdatePlan &plan,
                        StepKind kind) {
  Location loc = builder.getUnknownLoc();
  auto step =
      StepOp::create(builder, loc, kind, 0, 0, builder.getStrArrayAttr({}));
  OpBuilder b = OpBuilder::atBlockEnd(&step.getBody().emplaceBlock());
  for (const UpdatePiece &piece : plan.pieces) {
    StringRef average = piece.kind.optimizer->average;
    if (average.empty())
      continue;
    auto read = [&](FlatKind flat, int64_t row) -> Value {
      return FlatOp::create(b, loc, piece.type, flat, FlatSymbolRefAttr(),
                            false, row);
    };
    OperationState op(loc, average);
    op.addOperands({read(FlatKind::Trainable, piece.row),
                    read(FlatKind::State, piece.states.front().offset)});
    op.addTypes(piece.type);
    if (kind == StepKind::Continue)
      op.addAttribute("back", b.getUnitAttr());
    StoreFlatOp::create(b, loc, FlatKind::Trainable, FlatSymbolRefAttr(),
                        b.create(op)->getResult(0), piece.row);
  }
}

/// Builds the gradient norm of all groups; sharded groups come last. Each rank
/// sends its shard's norm as one value, so all ranks compute the same bits.
static ClipNormOp buildClipNorm(OpBuilder &b, ModuleOp module) {
  Location loc = b.getUnknownLoc();
  Type f32 = b.getF32Type();
  auto one = RankedTensorType::get({1}, f32);
  int64_t whole = 0, divided = 0; // rows
  for (const FlatGroup &group : flatGroups(module))
    (group.kind.isSharded ? divided : whole) += group.rows;
  auto read = [&](int64_t rows, bool statistics, int64_t row) -> Value {
    return FlatOp::create(
        b, loc, RankedTensorType::get({rows, kFlatColumns}, f32),
        FlatKind::Gradient, FlatSymbolRefAttr(), statistics, row);
  };
  Value lengths;
  if (divided > 0) {
    Value own =
        train::LengthOp::create(b, loc, one, read(divided, false, whole));
    lengths = AllGatherOp::create(
        b, loc, one.clone({model::meshOf(module).zero2}), own);
  }
  return ClipNormOp::create(b, loc, one, one, read(1 + whole, true, 0),
                            lengths);
}

void qlora::buildUpdateSteps(OpBuilder &builder, ModuleOp module) {
  Location loc = builder.getUnknownLoc();
  auto step = StepOp::create(builder, loc, StepKind::Update, 0, 0,
                             builder.getStrArrayAttr({}));
  Block &block = step.getBody().emplaceBlock();
  OpBuilder b = OpBuilder::atBlockEnd(&block);
  auto clip = buildClipNorm(b, module);
  ResultOp::create(b, loc, "grad_norm", clip.getNorm(), false);
  const UpdatePlan plan = planUpdate(module);
  for (const UpdatePiece &piece : plan.pieces)
    updatePiece(b, piece, clip.getScale());
  for (const UpdatePiece &piece : plan.pieces)
    if (piece.pieces > 1)
      GatherFlatOp::create(
          b, loc,
          piece.type.clone(
              {matrixRows(piece.type) * piece.pieces, kFlatColumns}),
          FlatKind::Trainable, piece.row, piece.pieces);
  ClearOp::create(b, loc, FlatKind::Gradient);
  if (llvm::any_of(plan.pieces, [](const UpdatePiece &piece) {
        return !piece.kind.optimizer->average.empty();
      }))
    for (StepKind kind : {StepKind::Average, StepKind::Continue})
      buildSwitch(builder, plan, kind);
}

LogicalResult qlora::checkDivision(ModuleOp module) {
  if (model::meshOf(module).zero1 == 1)
    return success();
  if (model::meshOf(module).zero2 > 1)
    return module.emitError(
        "--parallel: zero1 conflicts with zero2, and with fsdp of trainable "
        "weights: they shard updates too; remove zero1");
  for (auto parameter : module.getOps<ParameterOp>()) {
    const Optimizer *optimizer = findOptimizer(parameter.getOptimizer());
    if (parameter.getTrainable() &&
        (optimizer->isByTensor || !optimizer->average.empty()))
      return module.emitError("--parallel zero1 cannot shard updates of '")
             << optimizer->name
             << "'; use --optim adamw_torch or lion, or remove zero1";
  }
  return success();
}
