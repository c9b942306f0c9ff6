// SPDX-License-Identifier: MIT

// The attributes and enumerations of the model dialect.

#ifndef QLORA_DIALECTS_MODEL_MODELATTRIBUTES_TD
#define QLORA_DIALECTS_MODEL_MODELATTRIBUTES_TD

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"

include "dialects/Enums.td"
include "dialects/Model/ModelDialect.td"

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
    I32EnumAttrCase<"Silu", 3, "silu">,
    I32EnumAttrCase<"Relu2", 4, "relu2">]> {
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

def Model_MeshAttr : AttrDef<Model_Dialect, "Mesh"> {
  let mnemonic = "mesh";
  let summary = "ranks along each axis of --parallel";
  let description = [{
    `#model.mesh<tp = 2, cp = 4>`: the axes of runtime/ABI/Enums.def, in its
    order; an axis that is absent has one rank. A module's attribute
    `model.mesh` has the axes along which passes have divided it so far.
  }];
  let parameters = (ins ArrayRefParameter<"int64_t">:$sizes);
  let hasCustomAssemblyFormat = 1;
}

/// The process groups of runtime/ABI/Enums.def, as in program.Group.
def Model_Ranks : I32EnumAttr<"Ranks", "the ranks that an op connects",
                              ABI_GroupCases> {
  let cppNamespace = "::qlora::model";
  let genSpecializedAttr = 0;
}
def Model_RanksAttr : EnumAttr<Model_Dialect, Model_Ranks, "ranks">;

def Model_SliceAttr : AttrDef<Model_Dialect, "Slice"> {
  let mnemonic = "slice";
  let summary = "a rank's shard of a frozen weight, over an axis of slices";
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
    Every rank holds the whole weight, whose dimension `dimension` has length
    `size`. Elements [first, first + length) of that dimension are split into
    `ranks` equal ranges, one for each rank of the group `of`, in rank order.
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

#endif // QLORA_DIALECTS_MODEL_MODELATTRIBUTES_TD
