// SPDX-License-Identifier: MIT

// What passes know of an op: interfaces instead of names.

#ifndef QLORA_DIALECTS_MODEL_MODELINTERFACES_TD
#define QLORA_DIALECTS_MODEL_MODELINTERFACES_TD

include "mlir/IR/OpBase.td"

def Model_RowOp : OpInterface<"RowOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    An op whose arithmetic is a region over one row. The region's arguments
    are the operands in order: `tensor<Cxf32>` for `full`, `column` and
    `group`, `f32` for `scalar` and `global`. A result is `full`, or one number
    a row (`isScalarResult`).

    (R1) every operand has as many elements as its map reads, and every result
    as many as the rows have, or one for each of them; the first result is
    `full`.
  }];
  // With the regions: after the op's own constraints.
  let verifyWithRegions = 1;
  let verify = [{ return ::qlora::model::verifyRowOp($_op); }];
  let methods = [
    InterfaceMethod<"C: elements of a row.", "int64_t", "getRowColumns">,
    InterfaceMethod<"One map per operand.",
      "::llvm::SmallVector<::qlora::model::MapAttr>", "getRowMaps">,
    InterfaceMethod<[{Writes the arithmetic at the builder's position and
      returns one row, or one f32, per result.}],
      "::llvm::SmallVector<::mlir::Value>", "buildRow",
      (ins "::mlir::OpBuilder &":$builder, "::mlir::ValueRange":$arguments)>,
    InterfaceMethod<"True for a result that has one number a row.",
      "bool", "isScalarResult", (ins "unsigned":$index),
      [{}], [{ return false; }]>,
  ];
}

def Model_LibraryOp : OpInterface<"LibraryOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    An op that a library kernel computes. `getKernelCall` says which op of
    Kernels.def, and what each of its operands and constants is.
  }];
  let methods = [
    InterfaceMethod<"The call, complete but for row strides.",
      "::qlora::model::KernelCall", "getKernelCall">,
    InterfaceMethod<[{The operand that result `index` continues (`c += ...`)
      and may share memory with, or null.}],
      "::mlir::OpOperand *", "getTiedOperand", (ins "unsigned":$index),
      [{}], [{ return nullptr; }]>,
    InterfaceMethod<"True for a result that stays f32 whatever the compute "
                    "type.",
      "bool", "isFullPrecisionResult", (ins "unsigned":$index),
      [{}], [{ return false; }]>,
  ];
}

def Model_AccumulatingOp : OpInterface<"AccumulatingOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    A library op with one result that can add to what is there already
    instead of overwriting it: it has an optional operand `init`.
  }];
  let methods = [
    InterfaceMethod<"The tensor added to, or null.", "::mlir::Value",
      "getAccumulator">,
    InterfaceMethod<"Adds to `init` from now on.", "void", "setAccumulator",
      (ins "::mlir::Value":$init)>,
  ];
}

def Model_ViewOp : OpInterface<"ViewOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    `model.split` and `model.concat`: the parts are column (or row) ranges of
    the whole. Lowering makes them the same memory.
  }];
  let methods = [
    InterfaceMethod<"The tensor that the parts are ranges of.",
      "::mlir::Value", "getWhole">,
    InterfaceMethod<"The parts, in order.",
      "::mlir::ValueRange", "getViewParts">,
  ];
}

#endif // QLORA_DIALECTS_MODEL_MODELINTERFACES_TD
