// SPDX-License-Identifier: MIT

// attach-adapters: LoRA branches beside the target linears (Hu et al., 2021),
// by PEFT's rules. See Passes.td for a before and after.

#include "compiler/Graph/Targets.h"
#include "compiler/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/SetVector.h"

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
  void attach(LinearOp linear, DenseMap<Value, Value> &dropped);
  Value dropoutOf(LinearOp linear, DenseMap<Value, Value> &dropped);
  Value adapterWeight(OpBuilder &builder, LinearOp linear, StringRef name,
                      ArrayRef<int64_t> shape, StringRef init);
  LogicalResult trainModules();
  LogicalResult train(model::ParameterOp parameter);

  Targets matcher;
  ValuePatterns ranks, alphas;
  std::vector<std::string> saved;
};

} // namespace

LogicalResult AttachAdaptersPass::parseOptions() {
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

/// x after dropout: one mask for all linears that read the same x.
Value AttachAdaptersPass::dropoutOf(LinearOp linear,
                                    DenseMap<Value, Value> &dropped) {
  if (dropout == 0)
    return linear.getX();
  Value &value = dropped[linear.getX()];
  if (!value) {
    OpBuilder builder(linear);
    auto op = DropoutOp::create(builder, linear.getLoc(),
                                linear.getX().getType(), linear.getX(),
                                llvm::APFloat(double(dropout)),
                                static_cast<uint64_t>(dropped.size()));
    if (linear->hasAttr(kBlockAttr))
      op->setAttr(kBlockAttr, linear->getAttr(kBlockAttr));
    value = op;
  }
  return value;
}

/// The value of A or B; its parameter is made on first use (several lengths
/// share one).
Value AttachAdaptersPass::adapterWeight(OpBuilder &builder, LinearOp linear,
                                        StringRef name,
                                        ArrayRef<int64_t> shape,
                                        StringRef initial) {
  auto type = RankedTensorType::get(shape, builder.getF32Type());
  std::string path =
      ("base_model.model." + *linear.getModule() + "." + name + ".weight")
          .str();
  if (!getOperation().lookupSymbol(path)) {
    OpBuilder atEnd = OpBuilder::atBlockEnd(getOperation().getBody());
    auto parameter = model::ParameterOp::create(
        atEnd, linear.getLoc(), path, type, /*file=*/StringAttr(),
        /*file_type=*/TypeAttr(), atEnd.getStringAttr(initial),
        /*trainable=*/true, /*stored_quantized=*/false,
        /*quantized=*/TypeAttr(), /*part_names=*/ArrayAttr(),
        /*part_rows=*/DenseI64ArrayAttr());
    (void)parameter;
  }
  return WeightOp::create(builder, linear.getLoc(), type, path);
}

void AttachAdaptersPass::attach(LinearOp linear,
                                DenseMap<Value, Value> &dropped) {
  std::string path = linear.getModule()->str();
  int64_t r = static_cast<int64_t>(ranks.lookup(path).value_or(rank));
  double a = alphas.lookup(path).value_or(alpha);
  double scale = rslora ? a / std::sqrt(double(r)) : a / double(r);
  auto type = cast<RankedTensorType>(linear.getResult().getType());
  auto xType = cast<RankedTensorType>(linear.getX().getType());
  SmallVector<int64_t> narrow(type.getShape());
  narrow.back() = r;

  Value x = dropoutOf(linear, dropped);
  OpBuilder builder(linear->getContext());
  builder.setInsertionPointAfter(linear);
  Location loc = linear.getLoc();
  auto makeLinear = [&](Type result, Value input, Value weight,
                        double factor) -> LinearOp {
    return LinearOp::create(builder, loc, result, input, weight, Value(),
                            llvm::APFloat(factor), StringAttr());
  };
  Value weightA = adapterWeight(builder, linear, "lora_A",
                                {r, matrixColumns(xType)}, initA);
  LinearOp xa = makeLinear(type.clone(narrow), x, weightA, 1.0);
  Value weightB = adapterWeight(builder, linear, "lora_B",
                                {matrixColumns(type), r}, initB);
  LinearOp branch = makeLinear(type, xa, weightB, scale);
  auto sum = model::AddOp::create(builder, loc, type, linear.getResult(),
                                  branch);
  linear.getResult().replaceUsesWithIf(sum, [&](OpOperand &use) {
    return use.getOwner() != sum;
  });
  if (linear->hasAttr(kBlockAttr))
    for (Operation *op : {xa.getOperation(), branch.getOperation(),
                          sum.getOperation()})
      op->setAttr(kBlockAttr, linear->getAttr(kBlockAttr));
}

LogicalResult AttachAdaptersPass::attachTo(func::FuncOp function) {
  SmallVector<LinearOp> linears;
  llvm::SetVector<StringRef> names;
  for (auto linear : function.getOps<LinearOp>())
    if (linear.getModule()) {
      names.insert(linear.getModule()->substr(
          linear.getModule()->rfind('.') + 1));
      if (matcher.matches(linear.getModule()->str()))
        linears.push_back(linear);
    }
  if (linears.empty())
    return getOperation().emitError("lora_target_modules: ")
           << targets << " matches no linear; there are: "
           << llvm::join(names, ", ");
  DenseMap<Value, Value> dropped;
  for (LinearOp linear : linears)
    attach(linear, dropped);
  return success();
}

/// Makes an ordinary weight trainable: f32 in memory, as stored in the file.
LogicalResult AttachAdaptersPass::train(model::ParameterOp parameter) {
  RankedTensorType type = parameter.getTensorType();
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

LogicalResult AttachAdaptersPass::trainModules() {
  for (const std::string &name : saved) {
    bool found = false;
    for (auto parameter : getOperation().getOps<model::ParameterOp>()) {
      StringRef module = parameter.getSymName().rsplit('.').first;
      if (parameter.getInit() ||
          (module != name && !module.ends_with("." + name)))
        continue;
      found = true;
      if (failed(train(parameter)))
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
  for (auto function : getOperation().getOps<func::FuncOp>())
    if (failed(attachTo(function)))
      return signalPassFailure();
  if (failed(trainModules()))
    signalPassFailure();
}
