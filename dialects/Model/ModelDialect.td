// SPDX-License-Identifier: MIT

// The model dialect.

#ifndef QLORA_DIALECTS_MODEL_MODELDIALECT_TD
#define QLORA_DIALECTS_MODEL_MODELDIALECT_TD

include "mlir/IR/OpBase.td"

def Model_Dialect : Dialect {
  let name = "model";
  let cppNamespace = "::qlora::model";
  let summary = "Forward operations of a language model, on tensors";
  let description = [{
    ```
     qlora-import ──► model ──► train ──► program ──► train.so
                      ^^^^^
    ```

    The model dialect is what a user writes or imports. A file holds one
    `model.parameter` per weight, which names a safetensors file and never holds
    the bytes, and one function. The function's arguments are marked with
    `model.input`; it returns the results of a `LossOp`, `model.head_loss`:

    ```mlir
    model.parameter @"model.norm.weight" : tensor<64xbf16>
        {file = "model.safetensors"}
    func.func @forward(%ids: tensor<?x?xi32> {model.input = "ids"}, ...)
    ```

    An activation is a tensor whose first two dimensions are the batch and
    the length, both dynamic until `specialize-shapes`; its element type is
    f32 until that pass sets the compute type.

    **Row ops** (`RowOp`) have arithmetic that is a small region over one row,
    written once in `ModelRows.cpp`. Their gradient is derived from that
    region, they fuse with each other into `model.rows`, and their code is
    generated. **Library ops** (`LibraryOp`) name an op of `Kernels.def`.
    **View ops** (`model.split`, `model.concat`) copy data only if they must.
    `MemoryOp` describes which values can share memory. Every op of a step is
    a `StagedOp`, with a decoder layer and a phase of the training step. Passes
    use interfaces, never the name of an op.

    In a row region a row is a `tensor<Cxf32>`, and one number per row is an
    `f32`. Regions consist of `arith`, `math` and `model.row_*` ops, whatever
    the storage type of the operands: loads widen, stores round. A
    store to i8 rounds and saturates. Arithmetic that rounds explicitly
    (`model.row_round`) gives the same values whether or not rows are fused.
  }];
  let useDefaultTypePrinterParser = 1;
  let useDefaultAttributePrinterParser = 1;
  let hasOperationAttrVerify = 1;
  let dependentDialects = [
    "::mlir::arith::ArithDialect", "::mlir::math::MathDialect"
  ];
}

#endif // QLORA_DIALECTS_MODEL_MODELDIALECT_TD
