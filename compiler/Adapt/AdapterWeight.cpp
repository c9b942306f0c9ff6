// SPDX-License-Identifier: MIT

// Creates parameters of adapters.

#include "compiler/Adapt/AdapterWeight.h"

using namespace mlir;
using namespace qlora::model;

WeightOp qlora::adapterWeight(ModuleOp module, OpBuilder &builder, Location loc,
                              const Twine &name, ArrayRef<int64_t> shape,
                              StringRef initial) {
  auto type = RankedTensorType::get(shape, builder.getF32Type());
  std::string path = ("base_model.model." + name).str();
  if (!module.lookupSymbol(path)) {
    OpBuilder atEnd = OpBuilder::atBlockEnd(module.getBody());
    ParameterOp::create(atEnd, loc, path, type, /*file=*/StringAttr(),
                        /*file_type=*/TypeAttr(), atEnd.getStringAttr(initial),
                        /*trainable=*/true, /*stored_quantized=*/false,
                        /*quantized=*/TypeAttr(), /*part_names=*/ArrayAttr(),
                        /*part_rows=*/DenseI64ArrayAttr(),
                        /*transposed=*/false, /*undecayed=*/false,
                        /*rate_scale=*/llvm::APFloat(1.0),
                        /*optimizer=*/"adamw", /*piece=*/IntegerAttr(),
                        /*slice=*/model::SliceAttr());
  }
  return WeightOp::create(builder, loc, type, path);
}

std::set<std::string> qlora::adaptedModules(ModuleOp root) {
  std::set<std::string> modules;
  auto add = [&](StringRef name) {
    name.consume_front("base_model.model.");
    for (StringRef end : {".lora_A.", ".lora_embedding_A"})
      if (size_t at = name.find(end); at != StringRef::npos)
        modules.insert(name.take_front(at).str());
  };
  for (auto parameter : root.getOps<ParameterOp>()) {
    if (!parameter.getInit())
      continue;
    add(parameter.getSymName());
    if (auto parts = parameter.getPartNames())
      for (StringRef part : parts->getAsValueRange<StringAttr>())
        add(part);
  }
  return modules;
}
