// SPDX-License-Identifier: MIT

// Adds optional parts to an adapter, in addition to A and B. The parameter
// `branch` is the matmul with B; its result's only reader is an add.

#ifndef QLORA_COMPILER_ADAPT_ADAPTERFORMS_H
#define QLORA_COMPILER_ADAPT_ADAPTERFORMS_H

#include "dialects/Model/Model.h"

#include "mlir/IR/BuiltinOps.h"

namespace qlora {

/// Adds PEFT's lora_B.bias, scaled like B's result.
void addAdapterBias(mlir::ModuleOp root, model::LinearOp branch,
                    mlir::StringRef module);

/// Adds DoRA (Liu et al., 2024), as PEFT does. With s = m / |W + BA|, the input
/// x of `product`, and x~ = dropout(x), the result is
///
///   without dropout:  s (W x + BA x)
///   with dropout:     W x - W x~ + s (W x~ + BA x~)
///
/// The norm has no gradient. The argument `x` is the input of A: x~ with
/// dropout, else x.
void addMagnitude(mlir::ModuleOp root, model::WeightedMatmul product,
                  mlir::Value x, model::WeightOp weightA,
                  model::LinearOp branch);

/// Records that A and B are initialized with factors of `product`'s weight, as
/// an entry of kAdapterFactorsAttr in `factors`. Fails if the weight cannot be
/// decomposed.
mlir::LogicalResult recordLoraInitFactors(mlir::ModuleOp root,
                                          model::WeightedMatmul product,
                                          int64_t rank, double scale,
                                          mlir::NamedAttrList &factors);

} // namespace qlora

#endif // QLORA_COMPILER_ADAPT_ADAPTERFORMS_H
