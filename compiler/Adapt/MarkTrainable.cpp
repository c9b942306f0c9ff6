// SPDX-License-Identifier: MIT

// mark-trainable: makes weights of the model trainable, and chooses how each
// trainable parameter is updated.
//
//   model.parameter @m.norm.weight : tensor<64xbf16> {file = "..."}
//
// becomes, if m.norm is a trainable module,
//
//   model.parameter @m.norm.weight : tensor<64xf32>
//       {file = "...", file_type = bf16, trainable, undecayed}

#include "compiler/Adapt/AdapterTargetChecks.h"
#include "compiler/Adapt/AdapterWeight.h"
#include "compiler/Passes.h"
#include "dialects/Train/Optimizers.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_MARKTRAINABLE
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class MarkTrainablePass
    : public qlora::impl::MarkTrainableBase<MarkTrainablePass> {
public:
  using MarkTrainableBase::MarkTrainableBase;

private:
  void runOnOperation() override;
  LogicalResult trainModule(StringRef name);
  LogicalResult trainBiases();
  LogicalResult refuseShared(StringRef name);
  LogicalResult trainAll();
  LogicalResult checkTrainable(model::ParameterOp parameter);
  LogicalResult makeTrainable(model::ParameterOp parameter);
  LogicalResult chooseUpdate(model::ParameterOp parameter);
};
} // namespace

/// Returns true if two ops of one function read the parameter: tied weights.
static bool isShared(model::ParameterOp parameter) {
  llvm::DenseMap<Operation *, unsigned> readers;
  parameter->getParentOp()->walk([&](WeightOp weight) {
    if (weight.getParameter() == parameter.getSymName())
      readers[weight->getParentOp()] +=
          llvm::range_size(weight.getResult().getUses());
  });
  return llvm::any_of(readers, [](auto &of) { return of.second > 1; });
}

LogicalResult MarkTrainablePass::refuseShared(StringRef name) {
  return getOperation().emitError("modules_to_save: '")
         << name
         << "' is shared by two modules (tied weights), and PEFT would train "
            "a copy for one of them only; remove it";
}

LogicalResult MarkTrainablePass::checkTrainable(model::ParameterOp parameter) {
  if (parameter.getPartNames())
    return parameter.emitError("'")
           << parameter.getSymName()
           << "' is stored under other names (experts, or their router) and "
              "cannot be trained in full; remove it from modules_to_save or "
              "unfrozen_parameters, or use finetuning_type: lora";
  if (!all && isShared(parameter))
    return refuseShared(parameter.getSymName());
  if (isa<QuantizedType>(parameter.getTensorType().getElementType()))
    return parameter.emitError("'")
           << parameter.getSymName()
           << "' is quantized and cannot be trained in full; use an "
              "unquantized model or module, and remove load_in_4bit, "
              "load_in_8bit and quant_method";
  return success();
}

/// Makes a weight of the model trainable: it becomes f32 in memory, and the
/// file keeps its type.
LogicalResult MarkTrainablePass::makeTrainable(model::ParameterOp parameter) {
  if (failed(checkTrainable(parameter)))
    return failure();
  RankedTensorType type = parameter.getTensorType();
  parameter.setFileTypeAttr(TypeAttr::get(type.getElementType()));
  parameter.setTrainable(true);
  parameter.setType(type.clone(Float32Type::get(&getContext())));
  return success();
}

/// Sets the types of weight ops to their parameters' types.
static void retype(ModuleOp module) {
  SymbolTable symbols(module);
  module.walk([&](WeightOp weight) {
    weight.getResult().setType(
        symbols.lookup<model::ParameterOp>(weight.getParameter())
            .getTensorType());
  });
}

/// Returns whether the path of `module` or of a parent ends with `name`. PEFT
/// wraps every such module with its submodules.
static bool isInside(StringRef module, StringRef name) {
  for (size_t dot = module.find('.'); dot != StringRef::npos;
       dot = module.find('.', dot + 1))
    if (module.take_front(dot).ends_with(name))
      return true;
  return module.ends_with(name);
}

LogicalResult MarkTrainablePass::trainModule(StringRef name) {
  bool found = false;
  for (auto parameter : getOperation().getOps<model::ParameterOp>()) {
    if (parameter.getInit() ||
        !isInside(parameter.getSymName().rsplit('.').first, name))
      continue;
    found = true;
    if (!parameter.getTrainable() && failed(makeTrainable(parameter)))
      return failure();
  }
  if (found)
    return success();
  // Only a tied head is not found yet: it has no weight parameter of its own.
  const std::string head = headPath(getOperation());
  if (!head.empty() && isInside(head, name))
    return refuseShared(head);
  std::vector<std::string> modules;
  for (auto parameter : getOperation().getOps<model::ParameterOp>())
    if (!parameter.getInit())
      modules.push_back(parameter.getSymName().rsplit('.').first.str());
  return getOperation().emitError("modules_to_save: '")
         << name << "' matches no module with a weight; "
         << nameHint(name.str(), modules);
}

/// Returns whether a pattern matches the parameter, by its name or by the name
/// of a tensor that it stacks.
static bool isUnfrozen(ParameterPatterns &patterns,
                       model::ParameterOp parameter) {
  bool isMatched = patterns.matches(parameter.getSymName().str());
  if (auto parts = parameter.getPartNames())
    for (StringRef part : parts->getAsValueRange<StringAttr>())
      isMatched |= patterns.matches(part.str());
  return isMatched;
}

LogicalResult MarkTrainablePass::trainAll() {
  ParameterPatterns patterns;
  std::string error;
  if (!patterns.parse(unfrozen, error))
    return getOperation().emitError("unfrozen_parameters: ") << error;
  bool found = patterns.isEmpty();
  for (auto parameter : getOperation().getOps<model::ParameterOp>()) {
    if (parameter.getInit() ||
        (!patterns.isEmpty() && !isUnfrozen(patterns, parameter)))
      continue;
    found = true;
    if (failed(makeTrainable(parameter)))
      return failure();
  }
  const std::string unmatched = llvm::join(patterns.unmatched(), ", ");
  if (!found)
    return getOperation().emitError("unfrozen_parameters: ")
           << unmatched << " matches no parameter of the model. Fix: write "
           << "names as they are in its files";
  if (!unmatched.empty())
    getOperation().emitWarning("unfrozen_parameters: ")
        << unmatched << " matches no parameter of the model";
  return success();
}

LogicalResult MarkTrainablePass::trainBiases() {
  if (bias == "none")
    return success();
  const std::set<std::string> adapted = adaptedModules(getOperation());
  bool found = false;
  for (auto parameter : getOperation().getOps<model::ParameterOp>()) {
    auto [module, name] = parameter.getSymName().rsplit('.');
    if (parameter.getInit() || name != "bias" ||
        (bias != "all" && !adapted.contains(module.str())))
      continue;
    found = true;
    if (!parameter.getTrainable() && failed(makeTrainable(parameter)))
      return failure();
  }
  if (!found)
    getOperation().emitWarning("bias ")
        << bias << ": no module "
        << (bias == "all" ? "" : "with an adapter ") << "has a bias";
  return success();
}

/// Sets how a parameter is updated. As in transformers' Trainer, biases and
/// norms are not decayed. As in PEFT's LoRA+ (Hayou et al., 2024), B and
/// one-dimensional parameters have a separate learning rate.
LogicalResult MarkTrainablePass::chooseUpdate(model::ParameterOp parameter) {
  StringRef name = parameter.getSymName();
  RankedTensorType type = parameter.getTensorType();
  const bool isVector = type.getRank() == 1;
  if (name.lower().find("bias") != std::string::npos ||
      (isVector && name.ends_with(".weight")))
    parameter.setUndecayed(true);
  if (loraPlusRatio != 1 && name.contains("lora_embedding"))
    return parameter.emitError("loraplus_lr_ratio: '")
           << name
           << "' belongs to an embedding, for which LoRA+ has a separate "
              "learning rate, which is not supported; remove its module from "
              "lora_target_modules";
  if (isVector || name.contains("lora_B"))
    parameter.setRateScale(llvm::APFloat(double(loraPlusRatio)));
  const train::Optimizer *row =
      train::chooseOptimizer(optimizer, type.getShape());
  if (!row)
    return parameter.emitError("--optim: unknown optimizer '")
           << optimizer << "'";
  parameter.setOptimizer(row->name);
  return success();
}

void MarkTrainablePass::runOnOperation() {
  std::vector<std::string> names;
  std::string error;
  if (!parseSavedModules(modules, names, error)) {
    getOperation().emitError(error);
    return signalPassFailure();
  }
  for (const std::string &name : names)
    if (failed(trainModule(name)))
      return signalPassFailure();
  if (failed(all ? trainAll() : trainBiases()))
    return signalPassFailure();
  for (auto parameter : getOperation().getOps<model::ParameterOp>())
    if (parameter.getTrainable() && failed(chooseUpdate(parameter)))
      return signalPassFailure();
  retype(getOperation());
}
