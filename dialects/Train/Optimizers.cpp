// SPDX-License-Identifier: MIT

// The optimizer table, and the layout of optimizer state.

#include "dialects/Train/Optimizers.h"

using namespace mlir;
using namespace qlora::model;
using namespace qlora::train;

/// Alignment in bytes of each state. Kernels get one pointer per state.
static constexpr int64_t kStateAlignment = 64;

/// Elements that share a scale in 8-bit states; equals kStateBlock in
/// Math/NF4Quantize.h. The kernel rejects any other number of scales.
static constexpr int64_t kStateBlock = 256;

static constexpr auto kElement = StateExtent::Element;

static constexpr Optimizer kOptimizers[] = {
    {"adamw", "train.adamw", false, {{"exp_avg"}, {"exp_avg_sq"}}},
    {"adamw_8bit",
     "adamw_8bit",
     true,
     {{"state1", kElement, true},
      {"state2", kElement, true},
      {"absmax1", StateExtent::Block},
      {"absmax2", StateExtent::Block}}},
    {"lion", "train.lion", false, {{"state1"}}},
    {"rmsprop", "train.rmsprop", false, {{"square_avg"}}},
    {"schedule_free",
     "train.schedule_free",
     false,
     {{"z"}, {"exp_avg_sq"}},
     "train.schedule_free_switch"},
    {"adafactor",
     "",
     true,
     {{"exp_avg_sq_row", StateExtent::Row},
      {"exp_avg_sq_col", StateExtent::Column}},
     "",
     buildAdafactor},
    {"adafactor_vector", "", true, {{"exp_avg_sq"}}, "", buildAdafactorVector},
    {"muon", "", true, {{"momentum_buffer"}}, "", buildMuon},
};

namespace {
/// Optimizers for one value of --optim: `whole` for tensors of at least
/// leastRank dimensions and leastElements elements, `small` for others.
struct Choice {
  StringLiteral option, whole;
  StringLiteral small = "";
  size_t leastRank = 0;
  int64_t leastElements = 0;
};
} // namespace

static constexpr Choice kChoices[] = {
    {"adamw_torch", "adamw"},
    {"adamw_bnb_8bit", "adamw_8bit", "adamw", 0, 4096},
    {"lion", "lion"},
    {"schedule_free_adamw", "schedule_free"},
    {"adafactor", "adafactor", "adafactor_vector", 2},
    {"muon", "muon", "adamw", 2},
    {"rmsprop", "rmsprop"},
};

ArrayRef<OptimizerState> Optimizer::getStates() const {
  return ArrayRef(states).take_until(
      [](const OptimizerState &state) { return state.name.empty(); });
}

const Optimizer *qlora::train::findOptimizer(StringRef name) {
  auto row = llvm::find_if(kOptimizers, [&](const Optimizer &optimizer) {
    return optimizer.name == name;
  });
  return row == std::end(kOptimizers) ? nullptr : row;
}

const Optimizer *qlora::train::chooseOptimizer(StringRef option,
                                               ArrayRef<int64_t> shape) {
  auto choice = llvm::find_if(
      kChoices, [&](const Choice &row) { return row.option == option; });
  if (choice == std::end(kChoices))
    return nullptr;
  const bool isWhole = shape.size() >= choice->leastRank &&
                       ShapedType::getNumElements(shape) >=
                           choice->leastElements;
  return findOptimizer(isWhole ? choice->whole : choice->small);
}

SmallVector<ParameterPart> qlora::train::partsOf(ParameterOp parameter) {
  SmallVector<int64_t> shape(parameter.getTensorType().getShape());
  if (!parameter.getPartNames())
    return {{parameter.getSymName(), 0, shape}};
  SmallVector<ParameterPart> parts;
  int64_t row = 0;
  for (auto [name, rows] : llvm::zip_equal(
           parameter.getPartNamesAttr().getAsValueRange<StringAttr>(),
           *parameter.getPartRows())) {
    shape[0] = rows;
    parts.push_back({name, row, shape});
    row += rows;
  }
  return parts;
}

static RankedTensorType stateType(const OptimizerState &state,
                                  RankedTensorType whole) {
  Builder b(whole.getContext());
  Type element = b.getF32Type();
  if (state.isByte)
    element = b.getIntegerType(8, /*isSigned=*/false);
  const int64_t rows = matrixRows(whole), columns = matrixColumns(whole);
  switch (state.extent) {
  case StateExtent::Element:
    return whole.clone(element);
  case StateExtent::Row:
    return RankedTensorType::get({rows, 1}, element);
  case StateExtent::Column:
    return RankedTensorType::get({columns}, element);
  case StateExtent::Block:
    return RankedTensorType::get(
        {int64_t(llvm::divideCeil(rows * columns, kStateBlock))}, element);
  }
  llvm_unreachable("all extents are above");
}

static void addPiece(UpdatePlan &plan, UpdatePiece piece) {
  for (const OptimizerState &state : piece.kind.optimizer->getStates()) {
    RankedTensorType type = stateType(state, piece.type);
    piece.states.push_back({type, plan.stateBytes});
    plan.stateBytes += llvm::alignTo(tensorBytes(type), kStateAlignment);
  }
  plan.pieces.push_back(std::move(piece));
}

UpdatePlan qlora::train::planUpdate(Operation *module) {
  UpdatePlan plan;
  auto f32 = Float32Type::get(module->getContext());
  for (const FlatGroup &group : flatGroups(module)) {
    if (!group.kind.optimizer->isByTensor) {
      const int64_t pieces = model::meshOf(module).zero1;
      addPiece(plan,
               {group.kind, {}, "", group.row,
                RankedTensorType::get({group.rows / pieces, kFlatColumns}, f32),
                pieces, {}});
      continue;
    }
    for (auto parameter : module->getRegion(0).getOps<ParameterOp>())
      if (parameter.getTrainable() && updateKindOf(parameter) == group.kind)
        for (const ParameterPart &part : partsOf(parameter)) {
          const int64_t columns = part.shape.back();
          addPiece(plan, {group.kind, FlatSymbolRefAttr::get(parameter),
                          part.name.str(), part.row,
                          RankedTensorType::get(
                              {ShapedType::getNumElements(part.shape) / columns,
                               columns},
                              f32),
                          /*pieces=*/1, {}});
        }
  }
  return plan;
}
