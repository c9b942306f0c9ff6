// SPDX-License-Identifier: MIT

// fuse-lora: computes the A's of siblings that share x in one GEMM, and
// accumulates B's result into the output of the base GEMM.
//
//   %q0 = model.linear %x, %wq        %k0 = model.linear %x, %wk
//   %qa = model.linear %x, %aq        %ka = model.linear %x, %ak
//   %qb = model.linear %qa, %bq       %kb = model.linear %ka, %bk
//   %q  = model.add %q0, %qb          %k  = model.add %k0, %kb
//
// becomes
//
//   %a      = model.linear %x, %aqk       // A's stacked by rows
//   %qa, %ka = model.split %a
//   %q0 = model.linear %x, %wq        %k0 = model.linear %x, %wk
//   %q  = model.linear %qa, %bq init %q0   %k = ... init %k0
//
// Runs before the gradient is built, so that the backward gets one dA GEMM, one
// dX GEMM and a concat per group without a separate pattern.

#include "compiler/Differentiate/Accumulate.h"
#include "compiler/Passes.h"
#include "dialects/Train/Train.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_FUSELORA
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class FuseLoraPass : public qlora::impl::FuseLoraBase<FuseLoraPass> {
  void runOnOperation() override;
  void fuseSiblings(ArrayRef<func::FuncOp> functions);
  void createParameter(ArrayRef<StringRef> members, StringRef name);
};
} // namespace

/// Adapter matmuls of one x: trainable, without a module.
using Siblings = SmallVector<WeightedMatmul>;

static model::ParameterOp parameterOf(Value weight) {
  auto op = weight.getDefiningOp<WeightOp>();
  return op ? SymbolTable::lookupNearestSymbolFrom<model::ParameterOp>(
                  op, op.getParameterAttr())
            : model::ParameterOp();
}

/// Returns whether the op multiplies by an adapter's A whose first dimension is
/// `out`. Only such A's can be stacked.
static bool isAdapterA(WeightedMatmul product) {
  model::ParameterOp parameter = parameterOf(product.getWeight());
  return product.getProduct() && !product.getModule() && !product.getInit() &&
         product.getGroups() == 1 && product.getOutDimension() == 0 &&
         parameter && parameter.getTrainable() && parameter.getInit() &&
         !parameter.getPartNames() && product.getWeight().hasOneUse();
}

static SmallVector<Siblings> findSiblings(func::FuncOp function) {
  llvm::MapVector<Value, Siblings> byInput;
  for (Operation &op : function.front())
    if (auto product = dyn_cast<WeightedMatmul>(op);
        product && isAdapterA(product))
      byInput[product.getX()].push_back(product);
  SmallVector<Siblings> groups;
  for (auto &[x, siblings] : byInput) {
    bool isOneKind =
        llvm::all_equal(llvm::map_range(siblings, [](WeightedMatmul op) {
          return std::tuple(op->getName(), op.getScale().convertToDouble(),
                            train::updateKindOf(parameterOf(op.getWeight())));
        }));
    if (siblings.size() > 1 && isOneKind)
      groups.push_back(siblings);
  }
  return groups;
}

static SmallVector<StringRef> namesOf(const Siblings &siblings) {
  return llvm::map_to_vector(siblings, [](WeightedMatmul op) {
    return op.getWeight().getDefiningOp<WeightOp>().getParameter();
  });
}

/// Creates one parameter with the rows of `members`.
void FuseLoraPass::createParameter(ArrayRef<StringRef> members,
                                   StringRef name) {
  SymbolTable table(getOperation());
  SmallVector<int64_t> rows;
  model::ParameterOp first;
  for (StringRef member : members) {
    auto parameter = table.lookup<model::ParameterOp>(member);
    if (!first)
      first = parameter;
    rows.push_back(parameter.getTensorType().getDimSize(0));
  }
  OpBuilder builder(first);
  auto type = RankedTensorType::get(
      {std::accumulate(rows.begin(), rows.end(), int64_t(0)),
       first.getTensorType().getDimSize(1)},
      builder.getF32Type());
  auto whole = cast<model::ParameterOp>(builder.clone(*first));
  whole.setSymName(name);
  whole.setType(type);
  whole.setPartNamesAttr(builder.getStrArrayAttr(members));
  whole.setPartRowsAttr(builder.getDenseI64ArrayAttr(rows));
}

/// Replaces the siblings by one matmul with the parameter `name`, and a split.
static void replaceSiblings(const Siblings &siblings, StringRef name,
                            RankedTensorType weightType) {
  WeightedMatmul first = siblings.front();
  OpBuilder builder(first);
  Location loc = first.getLoc();
  Value weight = WeightOp::create(builder, loc, weightType, name);
  WeightedMatmul whole = first.cloneWith(
      builder, weight,
      withColumns(first.getProduct(), weightType.getDimSize(0)));
  SmallVector<Type> types =
      llvm::map_to_vector(siblings, [](WeightedMatmul op) -> Type {
        return op.getProduct().getType();
      });
  auto split = SplitOp::create(builder, loc, types, whole.getProduct());
  copyStage(first, split);
  for (auto [op, part] : llvm::zip_equal(siblings, split.getParts())) {
    WeightedMatmul sibling = op;
    sibling.getProduct().replaceAllUsesWith(part);
    Operation *old = sibling.getWeight().getDefiningOp();
    sibling->erase();
    old->erase();
  }
}

void FuseLoraPass::fuseSiblings(ArrayRef<func::FuncOp> functions) {
  // Copies of one function for several lengths have the same groups in the
  // same order, as they share their parameters.
  SmallVector<SmallVector<Siblings>> groups =
      llvm::map_to_vector(functions, findSiblings);
  for (unsigned i = 0; i < groups.front().size(); ++i) {
    SmallVector<std::string> members;
    for (StringRef name : namesOf(groups.front()[i]))
      members.push_back(name.str());
    SmallVector<StringRef> names(members.begin(), members.end());
    bool same = llvm::all_of(groups, [&](auto &of) {
      return of.size() > i && namesOf(of[i]) == names;
    });
    if (!same)
      continue;
    std::string name = members.front() + ".group";
    createParameter(names, name);
    auto type =
        getOperation().lookupSymbol<model::ParameterOp>(name).getTensorType();
    for (auto &of : groups)
      replaceSiblings(of[i], name, type);
    for (StringRef member : names)
      getOperation().lookupSymbol(member)->erase();
  }
}

void FuseLoraPass::runOnOperation() {
  SmallVector<func::FuncOp> functions(getOperation().getOps<func::FuncOp>());
  if (functions.empty())
    return;
  fuseSiblings(functions);
  // The base is the output of a GEMM that is written once, so adding to it in
  // place costs no copy.
  auto isGemm = [](Value value) {
    return isa_and_nonnull<WeightedMatmul>(value.getDefiningOp());
  };
  for (func::FuncOp function : functions)
    for (auto add : llvm::make_early_inc_range(function.getOps<model::AddOp>()))
      fuseAdd(add, isGemm);
}
