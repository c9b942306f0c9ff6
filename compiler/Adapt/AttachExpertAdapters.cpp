// SPDX-License-Identifier: MIT

// attach-expert-adapters: adds LoRA to the stacked weights of experts, PEFT's
// `target_parameters`. See Passes.td for an example.

#include "compiler/Adapt/AdapterTargetChecks.h"
#include "compiler/Adapt/AdapterWeight.h"
#include "compiler/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/MapVector.h"

#include <nlohmann/json.hpp>

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_ATTACHEXPERTADAPTERS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

class AttachExpertAdaptersPass
    : public qlora::impl::AttachExpertAdaptersBase<AttachExpertAdaptersPass> {
public:
  using AttachExpertAdaptersBase::AttachExpertAdaptersBase;

private:
  void runOnOperation() override;
  LogicalResult parseOptions();
  LogicalResult refuseModuleTargets(WeightedMatmul product);
  LogicalResult attachTo(func::FuncOp function);
  void attach(WeightedMatmul product, StringRef adapter);

  Targets modules;
  std::optional<Targets> parameters; ///< none: no target
  ValuePatterns ranks, alphas;
  std::vector<std::string> adapted; ///< paths that rank_pattern can match
};

} // namespace

LogicalResult AttachExpertAdaptersPass::parseOptions() {
  modules = Targets();
  parameters.reset();
  adapted.clear();
  ranks = alphas = ValuePatterns();
  std::string error;
  auto fail = [&](StringRef option) {
    return getOperation().emitError(option) << ": " << error;
  };
  // Errors in these three options are normally reported by attach-adapters.
  if (!modules.parse(moduleTargets, error))
    return fail("lora_target_modules");
  if (!ranks.parse(rankPattern, error))
    return fail("lora_rank_pattern");
  if (!alphas.parse(alphaPattern, error))
    return fail("lora_alpha_pattern");
  auto list = nlohmann::json::parse(targets, nullptr, false);
  if (!list.is_array())
    return getOperation().emitError("target_parameters: expects a list of "
                                    "names, but got ")
           << targets;
  if (list.empty())
    return success();
  if (!parameters.emplace().parse(targets, error))
    return fail("target_parameters");
  if (dropout != 0)
    return getOperation().emitError("lora_dropout: target_parameters supports "
                                    "only 0, but got ")
           << dropout;
  if (initA != "kaiming")
    return getOperation().emitError("init_lora_weights: target_parameters "
                                    "supports only true and false, but got ")
           << initA;
  return success();
}

/// Returns "model.layers.0.mlp.experts" for "….gate_up_proj".
static StringRef moduleOf(WeightedMatmul product) {
  return product.getModule()->rsplit('.').first;
}

/// Returns whether the files have one linear per expert. PEFT's all-linear
/// includes such linears. If one tensor has the weights of all experts,
/// all-linear excludes it, because it is a parameter and not a module.
static bool isMadeOfLinears(WeightedMatmul product) {
  auto weight = product.getWeight().getDefiningOp<WeightOp>();
  auto parameter = SymbolTable::lookupNearestSymbolFrom<model::ParameterOp>(
      product, weight.getParameterAttr());
  return parameter && parameter.getPartNames();
}

/// Refuses module targets that match experts: PEFT would adapt them, with twice
/// the rank if gate and up are one weight.
LogicalResult
AttachExpertAdaptersPass::refuseModuleTargets(WeightedMatmul product) {
  StringRef module = moduleOf(product);
  if (!modules.matches(module.str()) ||
      (modules.isAllLinear() && !isMadeOfLinears(product)))
    return success();
  return getOperation().emitError("lora_target_modules: ")
         << moduleTargets << " matches the experts '" << module
         << "'; list other modules, such as [\"q_proj\", \"v_proj\"], and "
            "adapt experts with target_parameters";
}

void AttachExpertAdaptersPass::attach(WeightedMatmul product,
                                      StringRef adapter) {
  Value y = product.getProduct(), offsets = product.getGroupOffsets();
  std::string path = product.getModule()->str();
  int64_t r = static_cast<int64_t>(ranks.lookup(path).value_or(rank));
  double scale = loraScale(alphas.lookup(path).value_or(alpha), r, rslora);
  int64_t groups = product.getGroups();
  RankedTensorType type = tensorOf(y);
  Location loc = product.getLoc();
  OpBuilder builder(product->getContext());
  builder.setInsertionPointAfter(product);
  Value weightA =
      adapterWeight(getOperation(), builder, loc, adapter + ".lora_A.weight",
                    {r * groups, product.getInWidth()}, initA);
  auto xa = GroupedLinearOp::create(
      builder, loc, withColumns(y, r), product.getX(), weightA, offsets,
      Value(), llvm::APFloat(1.0), StringAttr(), WeightLayout::OutIn,
      /*groups_last=*/false);
  Value weightB =
      adapterWeight(getOperation(), builder, loc, adapter + ".lora_B.weight",
                    {product.getOutWidth(), r * groups}, initB);
  auto branch = GroupedLinearOp::create(
      builder, loc, type, xa, weightB, offsets, Value(),
      llvm::APFloat(scale), StringAttr(), WeightLayout::OutIn,
      /*groups_last=*/true);
  auto sum = model::AddOp::create(builder, loc, type, y, branch);
  y.replaceAllUsesExcept(sum, sum);
  for (Operation *made : {xa.getOperation(), branch.getOperation(),
                          sum.getOperation()})
    copyStage(product, made);
}

/// Attaches adapters. PEFT wraps a module once per target parameter. Each later
/// wrapper encloses the earlier ones and adds `.base_layer` to their names.
LogicalResult AttachExpertAdaptersPass::attachTo(func::FuncOp function) {
  llvm::MapVector<StringRef, SmallVector<WeightedMatmul>> wanted;
  SmallVector<StringRef> there;
  for (Operation &op : function.front()) {
    auto product = dyn_cast<WeightedMatmul>(op);
    if (!product || !product.getModule() || !product.getGroupOffsets() ||
        isReference(product))
      continue;
    if (failed(refuseModuleTargets(product)))
      return failure();
    there.push_back(*product.getModule());
    if (parameters && parameters->matches(product.getModule()->str()))
      wanted[moduleOf(product)].push_back(product);
  }
  if (parameters && wanted.empty())
    return getOperation().emitError("target_parameters: ")
           << targets << " matches no parameter of experts; there are: "
           << llvm::join(there, ", ");
  for (auto &[module, products] : wanted)
    for (auto [i, product] : llvm::enumerate(products)) {
      adapted.push_back(product.getModule()->str());
      std::string adapter = module.str();
      for (size_t outer = i + 1; outer < products.size(); ++outer)
        adapter += ".base_layer";
      attach(product, adapter);
    }
  return success();
}

void AttachExpertAdaptersPass::runOnOperation() {
  if (failed(parseOptions()))
    return signalPassFailure();
  for (auto function : getOperation().getOps<func::FuncOp>())
    if (failed(attachTo(function)))
      return signalPassFailure();
  for (const std::string &module : adaptedModules(getOperation()))
    adapted.push_back(module);
  if (failed(checkPatternNames(getOperation(), "lora_rank_pattern", ranks,
                               adapted)) ||
      failed(checkPatternNames(getOperation(), "lora_alpha_pattern", alphas,
                               adapted)))
    signalPassFailure();
}
