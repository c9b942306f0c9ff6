// SPDX-License-Identifier: MIT

// One program.kernel per distinct body.

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

FlatSymbolRefAttr KernelSymbols::generated(model::RowsOp rows,
                                           ArrayRef<int64_t> dtypes,
                                           ArrayRef<int64_t> strides,
                                           ArrayRef<int64_t> groups,
                                           int64_t aligned) {
  std::string signature;
  llvm::raw_string_ostream stream(signature);
  OpPrintingFlags flags;
  flags.printGenericOpForm().useLocalScope();
  for (Operation &op : rows.getBody().front())
    op.print(stream, flags.skipRegions(false)), stream << '\n';
  stream << rows.getColumns() << rows.getMaps() << aligned;
  for (ArrayRef<int64_t> list : {dtypes, strides, groups}) {
    stream << '|';
    llvm::interleaveComma(list, stream);
  }
  FlatSymbolRefAttr &symbol = known[signature];
  if (symbol)
    return symbol;
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
  return symbol = FlatSymbolRefAttr::get(kernel);
}
