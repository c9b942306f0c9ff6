// SPDX-License-Identifier: MIT

// The model dialect: its description, types and attributes.

#ifndef QLORA_DIALECTS_MODEL_MODELDIALECT_TD
#define QLORA_DIALECTS_MODEL_MODELDIALECT_TD

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/OpBase.td"

include "dialects/Enums.td"

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

def Model_QuantizedType : TypeDef<Model_Dialect, "Quantized"> {
  let mnemonic = "quantized";
  let summary = "element of few bits, with a scale per block";
  let description = [{
    The element type of a tensor, as in `tensor<64x96x!model.quantized<nf4, 64,
    true>>` or `tensor<64x96x!model.quantized<llm_int8, 96, false>>`. `format`
    is one of kStoredFormats (runtime/Kernels/Math/Stored.h, which also
    documents the layout). Each block of `block` consecutive elements of the
    flattened tensor has one scale; a block may be a row. With `doubleQuant` the
    scales are stored in 8 bits.
  }];
  let parameters = (ins "::qlora_dtype":$format, "int64_t":$block,
                        "bool":$doubleQuant);
  let assemblyFormat =
      "`<` custom<Format>($format) `,` $block `,` $doubleQuant `>`";
  let genVerifyDecl = 1;
}

def Model_WeightLayout
    : I32EnumAttr<"WeightLayout", "order of a weight's dimensions", [
    I32EnumAttrCase<"OutIn", 0, "out_in">,
    I32EnumAttrCase<"InOut", 1, "in_out">]> {
  let cppNamespace = "::qlora::model";
  let genSpecializedAttr = 0;
}
def Model_WeightLayoutAttr
    : EnumAttr<Model_Dialect, Model_WeightLayout, "layout">;

def Model_StepPhase : I32EnumAttr<"StepPhase", "phase of a training step", [
    I32EnumAttrCase<"Forward", 0, "forward">,
    I32EnumAttrCase<"Backward", 1, "backward">,
    I32EnumAttrCase<"Recomputed", 2, "recomputed">,
    I32EnumAttrCase<"Reference", 3, "reference">,
    I32EnumAttrCase<"Exchange", 4, "exchange">]> {
  let cppNamespace = "::qlora::model";
  let genSpecializedAttr = 0;
}
def Model_StepPhaseAttr : EnumAttr<Model_Dialect, Model_StepPhase, "phase"> {
  let assemblyFormat = "`<` $value `>`";
}

def Model_Activation : I32EnumAttr<"Activation", "elementwise function", [
    I32EnumAttrCase<"Gelu", 0, "gelu">,
    I32EnumAttrCase<"GeluTanh", 1, "gelu_tanh">,
    I32EnumAttrCase<"Relu", 2, "relu">,
    I32EnumAttrCase<"Silu", 3, "silu">]> {
  let cppNamespace = "::qlora::model";
  let genSpecializedAttr = 0;
}
def Model_ActivationAttr
    : EnumAttr<Model_Dialect, Model_Activation, "activation_kind">;

def Model_MapKind : I32EnumAttr<"MapKind", "how a row reads an operand", [
    I32EnumAttrCase<"Full", 0, "full">,
    I32EnumAttrCase<"Column", 1, "column">,
    I32EnumAttrCase<"Scalar", 2, "scalar">,
    I32EnumAttrCase<"Group", 3, "group">,
    I32EnumAttrCase<"Global", 4, "global">]> {
  let cppNamespace = "::qlora::model";
  let genSpecializedAttr = 0;
}

def Model_MapAttr : AttrDef<Model_Dialect, "Map"> {
  let mnemonic = "map";
  let summary = "how row r of a row op reads or writes a tensor";
  let description = [{
    For an op over R rows of C columns, with the tensor seen as flat:
    * `full`: row r is elements [r*C, (r+1)*C);
    * `column`: the same C elements for every row (a norm's weight);
    * `scalar`: one number, at index r / group;
    * `group`: C elements, of row r / group (cos and sin, which all heads of a
      token share);
    * `global`: one number for all rows.
  }];
  let parameters = (ins EnumParameter<Model_MapKind>:$kind,
                        DefaultValuedParameter<"int64_t", "1">:$group);
  let assemblyFormat = "`<` $kind (`,` $group^)? `>`";
  let genVerifyDecl = 1;
}
def Model_MapArrayAttr : TypedArrayAttrBase<Model_MapAttr, "operand maps">;

/// The process groups of runtime/ABI/Enums.def, as in program.Group.
def Model_Ranks : I32EnumAttr<"Ranks", "the ranks that an op connects",
                              ABI_GroupCases> {
  let cppNamespace = "::qlora::model";
  let genSpecializedAttr = 0;
}
def Model_RanksAttr : EnumAttr<Model_Dialect, Model_Ranks, "ranks">;

def Model_SliceAttr : AttrDef<Model_Dialect, "Slice"> {
  let mnemonic = "slice";
  let summary = "a rank's shard of a frozen weight, in group TP or EP";
  let description = [{
    In its files the weight is `ranks` times as long in `dimension`. That
    dimension consists of consecutive `segments` (q, k and v of one projection);
    a rank holds an equal range of each. With `coded_scales` the whole weight is
    quantized with 8-bit scales, and the slice holds them decoded.
  }];
  let parameters = (ins "int64_t":$ranks, "int64_t":$dimension,
                        ArrayRefParameter<"int64_t">:$segments,
                        DefaultValuedParameter<"bool", "false">:$coded_scales);
  let assemblyFormat = [{
    `<` $ranks `,` $dimension `,` `[` $segments `]` (`,` $coded_scales^)? `>`
  }];
  let extraClassDeclaration = [{
    /// Length of the unsharded weight in getDimension().
    int64_t getLength() const {
      int64_t length = 0;
      for (int64_t segment : getSegments())
        length += segment;
      return length;
    }
  }];
}

def Model_PartRanks : EnumParameter<Model_Ranks> {
  let defaultValue = "::qlora::model::Ranks::TP";
}
def Model_PartAttr : AttrDef<Model_Dialect, "Part"> {
  let mnemonic = "part";
  let summary = "the range of a weight that a rank uses";
  let description = [{
    Every rank holds the whole weight. Elements [first, first + length) of
    `dimension`, whose length is `size`, are split into `ranks` equal ranges; a
    rank uses the range of its index in the group `of`.
  }];
  let parameters = (ins "int64_t":$ranks, "int64_t":$dimension,
                        "int64_t":$first, "int64_t":$length, "int64_t":$size,
                        Model_PartRanks:$of);
  let assemblyFormat = [{
    `<` $ranks `,` $dimension `,` $first `,` $length `,` $size (`,` $of^)? `>`
  }];
  let extraClassDeclaration = [{
    /// Returns the type of a rank's range of a tensor of type `whole`.
    ::mlir::RankedTensorType of(::mlir::RankedTensorType whole) const {
      ::llvm::SmallVector<int64_t> shape(whole.getShape());
      shape[getDimension()] = getLength() / getRanks();
      return whole.clone(shape);
    }
    /// Returns whether the attribute is valid for a tensor of type `whole`.
    bool isOf(::mlir::RankedTensorType whole) const {
      return getRanks() > 0 && getDimension() >= 0 &&
             getDimension() < whole.getRank() && getFirst() >= 0 &&
             getLength() > 0 && getLength() % getRanks() == 0 &&
             getSize() == whole.getDimSize(getDimension()) &&
             getFirst() + getLength() <= getSize();
    }
    /// Returns whether the ranges of the two attributes overlap, given that
    /// both are of the same tensor.
    bool meets(PartAttr other) const {
      return getDimension() != other.getDimension() ||
             (getFirst() < other.getFirst() + other.getLength() &&
              other.getFirst() < getFirst() + getLength());
    }
  }];
}

#endif // QLORA_DIALECTS_MODEL_MODELDIALECT_TD
