// SPDX-License-Identifier: MIT

// Type constraints of operands and results; shared by model and train.

#ifndef QLORA_DIALECTS_MODEL_MODELTYPECONSTRAINTS_TD
#define QLORA_DIALECTS_MODEL_MODELTYPECONSTRAINTS_TD

include "mlir/IR/OpBase.td"

/// A tensor type that memory can hold: at least one dimension, each positive or
/// still dynamic, and an element type that the ABI defines.
class Model_TensorOf<string predicate, string what>
    : Type<CPred<"::qlora::model::" # predicate # "($_self)">,
           "a ranked tensor of " # what # " with positive dimensions",
           "::mlir::RankedTensorType">;
def Model_Tensor
    : Model_TensorOf<"isStorable",
                     "f32, bf16, f16, i32, i8, ui8 or 4-bit numbers">;
def Model_FloatTensor
    : Model_TensorOf<"isFloatStorable", "f32, bf16 or f16">;
def Model_RowTensor
    : Model_TensorOf<"isRowStorable", "f32, bf16, f16 or i8">;
def Model_WeightTensor
    : Model_TensorOf<"isWeightStorable", "f32, bf16, f16 or 4-bit numbers">;

#endif // QLORA_DIALECTS_MODEL_MODELTYPECONSTRAINTS_TD
