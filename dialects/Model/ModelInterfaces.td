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
      "getAccumulator", (ins), [{}], [{ return $_op.getInit(); }]>,
    InterfaceMethod<"Its use by the op, or null.", "::mlir::OpOperand *",
      "getAccumulatorUse", (ins), [{}],
      [{ return $_op.getInit() ? &$_op.getInitMutable()[0] : nullptr; }]>,
    InterfaceMethod<"Adds to `init` from now on.", "void", "setAccumulator",
      (ins "::mlir::Value":$init), [{}],
      [{ $_op.getInitMutable().assign(init); }]>,
  ];
}

def Model_MemoryOp : OpInterface<"MemoryOp"> {
  let cppNamespace = "::qlora::model";
  let description = [{
    What the memory of an op's operands and results has to do with each other,
    and with memory outside of the step. These are facts of the op;
    compiler/Graph/StepMemory.h decides with them where each value is.
  }];
  let methods = [
    InterfaceMethod<[{Results that can be written where an operand is, results
      in order and for each the operands in order. By default a sum over
      `init`, and what a row op can write over (tiesOf).}],
      "::llvm::SmallVector<::qlora::model::MemoryTie>", "getMemoryTies", (ins),
      [{}], [{ return ::qlora::model::tiesOf($_op.getOperation()); }]>,
    InterfaceMethod<"Operands or results that are ranges of another, in order.",
      "::llvm::SmallVector<::qlora::model::MemoryPart>", "getMemoryParts",
      (ins), [{}], [{ return {}; }]>,
    InterfaceMethod<"Memory outside of the step that the op writes.",
      "::llvm::SmallVector<::qlora::model::MemoryStore>", "getMemoryStores",
      (ins), [{}], [{ return {}; }]>,
    InterfaceMethod<[{The memory outside of the step that its only result is;
      nullopt where the results are the step's own.}],
      "::std::optional<::qlora::model::OutsideMemory>", "getOutsideMemory",
      (ins), [{}], [{ return ::std::nullopt; }]>,
  ];
}

#endif // QLORA_DIALECTS_MODEL_MODELINTERFACES_TD
