// SPDX-License-Identifier: MIT

// The type of the model dialect. ModelDialect.cpp prints its format.

#ifndef QLORA_DIALECTS_MODEL_MODELTYPES_TD
#define QLORA_DIALECTS_MODEL_MODELTYPES_TD

include "mlir/IR/AttrTypeBase.td"

include "dialects/Model/ModelDialect.td"

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

#endif // QLORA_DIALECTS_MODEL_MODELTYPES_TD
