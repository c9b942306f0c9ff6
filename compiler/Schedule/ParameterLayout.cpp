// SPDX-License-Identifier: MIT

// Offsets of parameters, and their rows of the module's table.

#include "compiler/Schedule/ParameterLayout.h"

#include "llvm/ADT/StringSet.h"

#include "runtime/ABI/module.h"
#include "runtime/Kernels/KernelTable.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

/// A cache line, and what every vector load may ask for.
static constexpr int64_t kParameterAlignment = 64;

/// True where `use` is the operand of a kernel that reads single rows of it.
static bool isReadByRows(OpOperand &use) {
  auto library = dyn_cast<LibraryOp>(use.getOwner());
  if (!library)
    return false;
  KernelCall call = library.getKernelCall();
  const KernelOp *kernel = findKernelOp(call.op.str());
  for (auto [operand, argument] :
       llvm::zip(kernel->operands, call.arguments))
    if (argument.kind == KernelArgument::Operand &&
        argument.index == use.getOperandNumber())
      return operand.isReadByRows;
  return false;
}

/// Parameters of which nothing reads more than single rows.
static llvm::StringSet<> tablesOf(ModuleOp module) {
  llvm::StringSet<> tables, others;
  for (auto step : module.getOps<train::StepOp>())
    for (auto weight : step.getBody().getOps<WeightOp>())
      for (OpOperand &use : weight->getUses())
        (isReadByRows(use) ? tables : others).insert(weight.getParameter());
  for (const auto &other : others)
    tables.erase(other.getKey());
  return tables;
}

FailureOr<ParameterLayout> ParameterLayout::of(ModuleOp module,
                                               bool offloadTables) {
  auto names = module->getAttrOfType<ArrayAttr>("train.layout");
  auto offsets = module->getAttrOfType<DenseI64ArrayAttr>("train.offsets");
  if (!names || !offsets || names.size() != static_cast<size_t>(offsets.size()))
    return module.emitError("expects the attributes train.layout and "
                            "train.offsets, which bucket-gradients writes");
  ParameterLayout layout;
  layout.flatBytes = 4 * train::flatElements(module);
  llvm::StringMap<int64_t> flat;
  for (auto [name, offset] : llvm::zip_equal(names, offsets.asArrayRef()))
    flat[cast<FlatSymbolRefAttr>(name).getValue()] = 4 * offset;
  llvm::StringSet<> hostTables;
  if (offloadTables)
    hostTables = tablesOf(module);
  for (auto parameter : module.getOps<ParameterOp>()) {
    int64_t bytes = tensorBytes(parameter.getTensorType());
    if (parameter.getTrainable()) {
      auto known = flat.find(parameter.getSymName());
      if (known == flat.end())
        return parameter.emitOpError("is trainable but not in train.layout");
      layout.places[parameter.getSymName()] = {program::Arena::Trainable,
                                               known->second, bytes};
      continue;
    }
    bool isOnHost = hostTables.contains(parameter.getSymName());
    int64_t &end = isOnHost ? layout.hostBytes : layout.frozenBytes;
    layout.places[parameter.getSymName()] = {
        isOnHost ? program::Arena::Host : program::Arena::Frozen, end, bytes};
    end = llvm::alignTo(end + bytes, kParameterAlignment);
  }
  return layout;
}

static int64_t initOf(ParameterOp parameter) {
  return llvm::StringSwitch<int64_t>(parameter.getInit().value_or("file"))
      .Case("zero", QLORA_INIT_ZERO)
      .Case("kaiming", QLORA_INIT_KAIMING)
      .Case("gaussian", QLORA_INIT_GAUSSIAN)
      .Default(QLORA_INIT_FILE);
}

static int64_t roleOf(ParameterOp parameter) {
  if (!parameter.getTrainable())
    return QLORA_ROLE_FROZEN;
  return parameter.getInit() ? QLORA_ROLE_ADAPTER : QLORA_ROLE_TRAINABLE;
}

void ParameterLayout::emit(OpBuilder &builder, ModuleOp module) const {
  for (auto parameter : module.getOps<ParameterOp>()) {
    const ParameterPlace &place = lookup(parameter.getSymName());
    RankedTensorType type = parameter.getTensorType();
    Type element = type.getElementType();
    // Quantised when loaded, quantised in the file, or neither.
    auto nf4 = dyn_cast_or_null<NF4Type>(
        parameter.getQuantized() ? *parameter.getQuantized() : element);
    int64_t quantization = !nf4 ? QLORA_QUANTIZATION_NONE
                           : parameter.getStoredQuantized()
                               ? QLORA_QUANTIZATION_NF4_STORED
                           : parameter.getTransposed()
                               ? QLORA_QUANTIZATION_NF4_TURNED
                               : QLORA_QUANTIZATION_NF4;
    Type fileType = parameter.getFileType().value_or(element);
    auto emitPart = [&](StringRef name, int64_t firstRow, int64_t rows) {
      SmallVector<int64_t> shape(type.getShape());
      int64_t rowBytes = place.bytes / type.getDimSize(0);
      bool whole = rows == type.getDimSize(0);
      shape[0] = rows;
      program::ParameterOp::create(
          builder, parameter.getLoc(), builder.getStringAttr(name),
          program::ArenaAttr::get(builder.getContext(), place.arena),
          builder.getI64IntegerAttr(place.offset + firstRow * rowBytes),
          builder.getI64IntegerAttr(whole ? place.bytes : rows * rowBytes),
          builder.getDenseI64ArrayAttr(shape),
          builder.getI64IntegerAttr(*elementDtype(element)),
          builder.getI64IntegerAttr(roleOf(parameter)),
          builder.getI64IntegerAttr(initOf(parameter)),
          builder.getI64IntegerAttr(quantization),
          builder.getI64IntegerAttr(nf4 ? nf4.getBlock() : 0),
          builder.getBoolAttr(nf4 && nf4.getDoubleQuant()),
          builder.getI64IntegerAttr(*elementDtype(fileType)),
          parameter.getFileAttr());
    };
    if (!parameter.getPartNames()) {
      emitPart(parameter.getSymName(), 0, type.getDimSize(0));
      continue;
    }
    int64_t row = 0;
    ArrayRef<int64_t> partRows = *parameter.getPartRows();
    ArrayAttr partNames = *parameter.getPartNames();
    for (auto [name, rows] : llvm::zip_equal(
             partNames.getAsValueRange<StringAttr>(), partRows)) {
      emitPart(name, row, rows);
      row += rows;
    }
  }
}
