// SPDX-License-Identifier: MIT

// Registration and verifiers of the program dialect.

#include "dialects/Program/Program.h"

#include "llvm/ADT/TypeSwitch.h"
#include "mlir/IR/DialectImplementation.h"

#include "runtime/Kernels/KernelTable.h"

using namespace mlir;
using namespace qlora::program;

#include "dialects/Program/ProgramDialect.cpp.inc"
#include "dialects/Program/ProgramEnums.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Program/ProgramAttrs.cpp.inc"
#define GET_TYPEDEF_CLASSES
#include "dialects/Program/ProgramTypes.cpp.inc"
#define GET_OP_CLASSES
#include "dialects/Program/ProgramOps.cpp.inc"

void ProgramDialect::initialize() {
  addOperations<
#define GET_OP_LIST
#include "dialects/Program/ProgramOps.cpp.inc"
      >();
  addTypes<
#define GET_TYPEDEF_LIST
#include "dialects/Program/ProgramTypes.cpp.inc"
      >();
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialects/Program/ProgramAttrs.cpp.inc"
      >();
}

LogicalResult KernelOp::verify() {
  bool generated = !getBody().empty();
  if (generated == getOp().has_value())
    return emitOpError("(C1) expects either the name of a library op or a "
                       "body");
  if (getOp() && !qlora::findKernelOp(*getOp()))
    return emitOpError("(C1) '") << *getOp() << "' is not in Kernels.def";
  return success();
}

void BufferOp::build(OpBuilder &builder, OperationState &state, Arena arena,
                     std::optional<int64_t> offset, int64_t bytes,
                     int64_t dtype, StringRef label, bool saved) {
  build(builder, state, BufferType::get(builder.getContext()),
        ArenaAttr::get(builder.getContext(), arena),
        offset ? builder.getI64IntegerAttr(*offset) : IntegerAttr(),
        builder.getI64IntegerAttr(bytes), builder.getI64IntegerAttr(dtype),
        label.empty() ? StringAttr() : builder.getStringAttr(label),
        saved ? builder.getUnitAttr() : UnitAttr(), /*backward=*/UnitAttr(),
        /*recomputed=*/UnitAttr());
}

void ViewOp::build(OpBuilder &builder, OperationState &state, Value source,
                   int64_t offset, int64_t bytes) {
  build(builder, state, BufferType::get(builder.getContext()), source,
        builder.getI64IntegerAttr(offset), builder.getI64IntegerAttr(bytes));
}

LogicalResult BufferOp::verify() {
  int64_t bytes = getBytes(), offset = getOffset().value_or(0);
  if (bytes < 1 || offset < 0)
    return emitOpError("(C1) expects a positive number of bytes at an offset "
                       "of at least 0, but got ")
           << bytes << " at " << offset;
  return success();
}

LogicalResult ViewOp::verify() {
  auto buffer = getSource().getDefiningOp<BufferOp>();
  int64_t offset = getOffset(), bytes = getBytes();
  int64_t room = buffer ? static_cast<int64_t>(buffer.getBytes()) : 0;
  if (!buffer || offset < 0 || bytes < 1 || offset > room ||
      bytes > room - offset)
    return emitOpError("(C1) expects a part of a program.buffer, but got ")
           << bytes << " bytes at " << offset << " of " << room;
  return success();
}

LogicalResult
LaunchOp::verifySymbolUses(SymbolTableCollection &symbols) {
  if (!symbols.lookupNearestSymbolFrom<KernelOp>(*this, getKernelAttr()))
    return emitOpError("(C1) refers to ")
           << getKernelAttr() << ", which is not a program.kernel";
  return success();
}

LogicalResult LaunchOp::verify() {
  if (getAccess().size() != getNumOperands() ||
      getDtypes().size() != getNumOperands())
    return emitOpError("(C2) expects one access and dtype for each of ")
           << getNumOperands() << " operands, but got " << getAccess().size()
           << " and " << getDtypes().size();
  return success();
}
