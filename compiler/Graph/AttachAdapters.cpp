// SPDX-License-Identifier: MIT

// attach-adapters: LoRA branches beside the target linears (Hu et al., 2021),
// by PEFT's rules. See Passes.td for a before and after.

#include "compiler/Graph/Targets.h"
#include "compiler/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringSet.h"

#include <nlohmann/json.hpp>

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace qlora {
#define GEN_PASS_DEF_ATTACHADAPTERS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

class AttachAdaptersPass
    : public qlora::impl::AttachAdaptersBase<AttachAdaptersPass> {
public:
  using AttachAdaptersBase::AttachAdaptersBase;

private:
  void runOnOperation() override;
  LogicalResult parseOptions();
  LogicalResult attachTo(func::FuncOp function);
  LogicalResult checkNames(func::FuncOp function);
  void attach(WeightedProduct product, DenseMap<Value, Value> &dropped);
  Value dropoutOf(WeightedProduct product, DenseMap<Value, Value> &dropped);
  void recordDropout(WeightOp weightA, DropoutOp dropoutOp);
  WeightOp adapterWeight(OpBuilder &builder, WeightedProduct product,
                         StringRef name, ArrayRef<int64_t> shape,
                         StringRef init);
  LogicalResult trainModules();
  LogicalResult train(model::ParameterOp parameter);

  Targets matcher;
  ValuePatterns ranks, alphas;
  std::vector<std::string> saved;
  /// The entries of kAdapterDropoutAttr.
  NamedAttrList recorded;
};

} // namespace

LogicalResult AttachAdaptersPass::parseOptions() {
  matcher = Targets();
  ranks = alphas = ValuePatterns();
  saved.clear();
  recorded.clear();
  std::string error;
  auto fail = [&](StringRef option) {
    return getOperation().emitError(option) << ": " << error;
  };
  if (!matcher.parse(targets, error))
    return fail("lora_target_modules");
  if (!ranks.parse(rankPattern, error))
    return fail("lora_rank_pattern");
  if (!alphas.parse(alphaPattern, error))
    return fail("lora_alpha_pattern");
  if (auto wrong = ranks.findNoRank())
    return getOperation().emitError("lora_rank_pattern: expects a whole number "
                                    "of at least 1 for '")
           << wrong->first << "', but got " << wrong->second;
  auto list = nlohmann::json::parse(modulesToSave, nullptr, false);
  if (!list.is_array())
    return getOperation().emitError("modules_to_save: expects a list, but "
                                    "got ")
           << modulesToSave;
  for (const auto &item : list) {
    if (!item.is_string())
      return getOperation().emitError("modules_to_save: expects names");
    saved.push_back(item.get<std::string>());
  }
  if (rank < 1)
    return getOperation().emitError("lora_r: expects at least 1, but got ")
           << int64_t(rank);
  if (dropout < 0 || dropout >= 1)
    return getOperation().emitError("lora_dropout: expects 0 <= p < 1, but "
                                    "got ")
           << dropout;
  return success();
}

/// Products that an adapter can stand beside, in order.
static SmallVector<WeightedProduct> productsOf(func::FuncOp function) {
  SmallVector<WeightedProduct> products;
  for (Operation &op : function.front())
    if (auto product = dyn_cast<WeightedProduct>(op);
        product && product.getModule() && product.getProduct() &&
        !product.getGroupOffsets())
      products.push_back(product);
  return products;
}

/// x after dropout: one mask for all products that read the same x.
Value AttachAdaptersPass::dropoutOf(WeightedProduct product,
                                    DenseMap<Value, Value> &dropped) {
  Value x = product.getX();
  if (dropout == 0)
    return x;
  Value &value = dropped[x];
  if (!value) {
    OpBuilder builder(product);
    auto op = DropoutOp::create(builder, product.getLoc(), x.getType(), x,
                                llvm::APFloat(double(dropout)),
                                static_cast<uint64_t>(dropped.size()));
    copyStage(product, op);
    value = op;
  }
  return value;
}

/// The same for every length: the functions are one model.
void AttachAdaptersPass::recordDropout(WeightOp weightA, DropoutOp dropoutOp) {
  Builder builder(&getContext());
  recorded.set(weightA.getParameter(),
               builder.getDictionaryAttr(
                   {builder.getNamedAttr("op", dropoutOp.getIdAttr()),
                    builder.getNamedAttr("probability",
                                         dropoutOp.getProbabilityAttr())}));
}

/// The value of A or B; its parameter is made on first use (several lengths
/// share one).
WeightOp AttachAdaptersPass::adapterWeight(OpBuilder &builder,
                                           WeightedProduct product,
                                           StringRef name,
                                           ArrayRef<int64_t> shape,
                                           StringRef initial) {
  auto type = RankedTensorType::get(shape, builder.getF32Type());
  std::string path =
      ("base_model.model." + *product.getModule() + "." + name + ".weight")
          .str();
  if (!getOperation().lookupSymbol(path)) {
    OpBuilder atEnd = OpBuilder::atBlockEnd(getOperation().getBody());
    model::ParameterOp::create(
        atEnd, product.getLoc(), path, type, /*file=*/StringAttr(),
        /*file_type=*/TypeAttr(), atEnd.getStringAttr(initial),
        /*trainable=*/true, /*stored_quantized=*/false,
        /*quantized=*/TypeAttr(), /*part_names=*/ArrayAttr(),
        /*part_rows=*/DenseI64ArrayAttr());
  }
  return WeightOp::create(builder, product.getLoc(), type, path);
}

/// A and B are [out, in], whatever the layout of the weight beside them.
void AttachAdaptersPass::attach(WeightedProduct product,
                                DenseMap<Value, Value> &dropped) {
  std::string path = product.getModule()->str();
  int64_t r = static_cast<int64_t>(ranks.lookup(path).value_or(rank));
  double a = alphas.lookup(path).value_or(alpha);
  double scale = rslora ? a / std::sqrt(double(r)) : a / double(r);
  Value y = product.getProduct();
  auto type = cast<RankedTensorType>(y.getType());
  SmallVector<int64_t> narrow(type.getShape());
  narrow.back() = r;

  Value x = dropoutOf(product, dropped);
  OpBuilder builder(product->getContext());
  builder.setInsertionPointAfter(product);
  Location loc = product.getLoc();
  auto makeLinear = [&](Type result, Value input, Value weight,
                        double factor) -> LinearOp {
    return LinearOp::create(builder, loc, result, input, weight, Value(),
                            llvm::APFloat(factor), StringAttr());
  };
  WeightOp weightA = adapterWeight(builder, product, "lora_A",
                                   {r, product.getInWidth()}, initA);
  if (dropout != 0)
    recordDropout(weightA, x.getDefiningOp<DropoutOp>());
  LinearOp xa = makeLinear(type.clone(narrow), x, weightA, 1.0);
  WeightOp weightB = adapterWeight(builder, product, "lora_B",
                                   {product.getOutWidth(), r}, initB);
  LinearOp branch = makeLinear(type, xa, weightB, scale);
  auto sum = model::AddOp::create(builder, loc, type, y, branch);
  y.replaceAllUsesExcept(sum, sum);
  for (Operation *op : {xa.getOperation(), branch.getOperation(),
                        sum.getOperation()})
    copyStage(product, op);
}

/// PEFT puts adapters on other modules too (embeddings, the head), or refuses
/// them (norms): neither may pass unseen. A name without a match is a slip.
LogicalResult AttachAdaptersPass::checkNames(func::FuncOp function) {
  if (matcher.isAllLinear())
    return success();
  llvm::StringSet<> linears;
  for (WeightedProduct product : productsOf(function))
    linears.insert(*product.getModule());
  for (auto parameter : getOperation().getOps<model::ParameterOp>()) {
    auto [module, name] = parameter.getSymName().rsplit('.');
    if (parameter.getInit() || name != "weight" || linears.contains(module) ||
        isSavedModule(module.str(), saved) || !matcher.matches(module.str()))
      continue;
    return getOperation().emitError("lora_target_modules: ")
           << targets << " matches '" << module
           << "', which is no linear of the model; adapters are for linears "
              "only";
  }
  for (const std::string &name : matcher.getNames()) {
    StringRef text = name;
    if (llvm::none_of(linears.keys(), [&](StringRef module) {
          return module == text || module.ends_with(("." + text).str());
        }))
      getOperation().emitWarning("lora_target_modules: '")
          << name << "' matches no linear";
  }
  return success();
}

LogicalResult AttachAdaptersPass::attachTo(func::FuncOp function) {
  SmallVector<WeightedProduct> linears;
  llvm::SetVector<StringRef> names;
  for (WeightedProduct product : productsOf(function)) {
    StringRef module = *product.getModule();
    names.insert(module.substr(module.rfind('.') + 1));
    if (!isSavedModule(module.str(), saved) && matcher.matches(module.str()))
      linears.push_back(product);
  }
  if (linears.empty())
    return getOperation().emitError("lora_target_modules: ")
           << targets << " matches no linear; there are: "
           << llvm::join(names, ", ");
  DenseMap<Value, Value> dropped;
  for (WeightedProduct linear : linears)
    attach(linear, dropped);
  return success();
}

/// True where two ops of one function read the parameter: tied weights.
static bool isShared(model::ParameterOp parameter) {
  llvm::DenseMap<Operation *, unsigned> readers;
  parameter->getParentOp()->walk([&](WeightOp weight) {
    if (weight.getParameter() == parameter.getSymName())
      readers[weight->getParentOp()] +=
          llvm::range_size(weight.getResult().getUses());
  });
  return llvm::any_of(readers, [](auto &of) { return of.second > 1; });
}

/// Makes an ordinary weight trainable: f32 in memory, as stored in the file.
LogicalResult AttachAdaptersPass::train(model::ParameterOp parameter) {
  RankedTensorType type = parameter.getTensorType();
  if (parameter.getPartNames())
    return parameter.emitError("modules_to_save: '")
           << parameter.getSymName()
           << "' has other names in the files (experts, or their router) and "
              "cannot be trained in full; leave it out";
  if (isShared(parameter))
    return parameter.emitError("modules_to_save: '")
           << parameter.getSymName()
           << "' is shared by two modules (tied weights), and PEFT would train "
              "a copy for one of them only; leave it out";
  if (isa<NF4Type>(type.getElementType()))
    return parameter.emitError("modules_to_save: '")
           << parameter.getSymName()
           << "' is 4-bit and cannot be trained; train a module that is not "
              "quantised, or drop load_in_4bit";
  parameter.setFileTypeAttr(TypeAttr::get(type.getElementType()));
  parameter.setTrainable(true);
  auto f32 = type.clone(Float32Type::get(&getContext()));
  parameter.setType(f32);
  getOperation().walk([&](WeightOp weight) {
    if (weight.getParameter() == parameter.getSymName())
      weight.getResult().setType(f32);
  });
  return success();
}

/// PEFT wraps every module whose path ends so, with all that is inside.
static bool isInside(StringRef module, StringRef name) {
  for (size_t dot = module.find('.'); dot != StringRef::npos;
       dot = module.find('.', dot + 1))
    if (module.take_front(dot).ends_with(name))
      return true;
  return module.ends_with(name);
}

LogicalResult AttachAdaptersPass::trainModules() {
  for (const std::string &name : saved) {
    bool found = false;
    for (auto parameter : getOperation().getOps<model::ParameterOp>()) {
      if (parameter.getInit() ||
          !isInside(parameter.getSymName().rsplit('.').first, name))
        continue;
      found = true;
      if (!parameter.getTrainable() && failed(train(parameter)))
        return failure();
    }
    if (!found)
      return getOperation().emitError("modules_to_save: '")
             << name << "' matches no module with a weight";
  }
  return success();
}

void AttachAdaptersPass::runOnOperation() {
  if (failed(parseOptions()))
    return signalPassFailure();
  bool isFirst = true;
  for (auto function : getOperation().getOps<func::FuncOp>()) {
    // The functions are one model at several lengths.
    if (isFirst && failed(checkNames(function)))
      return signalPassFailure();
    isFirst = false;
    if (failed(attachTo(function)))
      return signalPassFailure();
  }
  // Whatever the module came with described other adapters.
  getOperation()->removeAttr(kAdapterDropoutAttr);
  if (!recorded.empty())
    getOperation()->setAttr(kAdapterDropoutAttr,
                            recorded.getDictionary(&getContext()));
  if (failed(trainModules()))
    signalPassFailure();
}
