// SPDX-License-Identifier: MIT

// Modules that are trained in full.

#include "compiler/Graph/TrainModules.h"

#include "dialects/Model/Model.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

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
static LogicalResult makeTrainable(ModuleOp module,
                                   model::ParameterOp parameter) {
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
  if (isa<QuantizedType>(type.getElementType()))
    return parameter.emitError("modules_to_save: '")
           << parameter.getSymName()
           << "' is quantised and cannot be trained; train a module that is not "
              "quantised, or load without load_in_4bit or load_in_8bit";
  parameter.setFileTypeAttr(TypeAttr::get(type.getElementType()));
  parameter.setTrainable(true);
  auto f32 = type.clone(Float32Type::get(module.getContext()));
  parameter.setType(f32);
  module.walk([&](WeightOp weight) {
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

LogicalResult qlora::trainModules(ModuleOp module,
                                  ArrayRef<std::string> saved) {
  for (const std::string &name : saved) {
    bool found = false;
    for (auto parameter : module.getOps<model::ParameterOp>()) {
      if (parameter.getInit() ||
          !isInside(parameter.getSymName().rsplit('.').first, name))
        continue;
      found = true;
      if (!parameter.getTrainable() && failed(makeTrainable(module, parameter)))
        return failure();
    }
    if (!found)
      return module.emitError("modules_to_save: '")
             << name << "' matches no module with a weight";
  }
  return success();
}
