// SPDX-License-Identifier: MIT

// Creates one program.kernel per library op and per distinct generated body.

#include "compiler/Schedule/StepLowering.h"

using namespace mlir;
using namespace qlora;

FlatSymbolRefAttr KernelSymbols::library(StringRef op) {
  FlatSymbolRefAttr &symbol = known[op];
  if (symbol)
    return symbol;
  auto kernel = program::KernelOp::create(
      builder, loc, builder.getStringAttr(op), builder.getStringAttr(op),
      StringAttr(), IntegerAttr(), ArrayAttr(), DenseI64ArrayAttr(),
      DenseI64ArrayAttr(), DenseI64ArrayAttr(), /*aligned=*/1);
  return symbol = FlatSymbolRefAttr::get(kernel);
}

/// Returns a hash of a body's ops and attributes, without their operands.
static llvm::hash_code hashOf(model::RowsOp rows) {
  llvm::hash_code hash = 0;
  for (Operation &op : rows.getBody().front())
    hash = llvm::hash_combine(
        hash, OperationEquivalence::computeHash(
                  &op, OperationEquivalence::ignoreHashValue,
                  OperationEquivalence::ignoreHashValue,
                  OperationEquivalence::IgnoreLocations));
  return hash;
}

FlatSymbolRefAttr KernelSymbols::generated(model::RowsOp rows,
                                           ArrayRef<int64_t> dtypes,
                                           ArrayRef<int64_t> strides,
                                           ArrayRef<int64_t> groups,
                                           int64_t aligned) {
  SmallVector<program::KernelOp> &alike = bodies[hashOf(rows)];
  for (program::KernelOp kernel : alike)
    if (kernel.getColumns() == rows.getColumns() &&
        kernel.getMapsAttr() == rows.getMapsAttr() &&
        kernel.getAligned() == aligned && *kernel.getDtypes() == dtypes &&
        *kernel.getStrides() == strides && *kernel.getGroups() == groups &&
        OperationEquivalence::isRegionEquivalentTo(
            &kernel.getBody(), &rows.getBody(),
            OperationEquivalence::IgnoreLocations))
      return FlatSymbolRefAttr::get(kernel);
  std::string name = rows.getLabel().value_or("rows").str();
  if (unsigned copies = labels[name]++)
    name += "_" + std::to_string(copies);
  auto kernel = program::KernelOp::create(
      builder, loc, builder.getStringAttr(name), StringAttr(), StringAttr(),
      builder.getI64IntegerAttr(rows.getColumns()), rows.getMaps(),
      builder.getDenseI64ArrayAttr(dtypes),
      builder.getDenseI64ArrayAttr(strides),
      builder.getDenseI64ArrayAttr(groups), aligned);
  IRMapping mapping;
  rows.getBody().cloneInto(&kernel.getBody(), mapping);
  alike.push_back(kernel);
  return FlatSymbolRefAttr::get(kernel);
}
