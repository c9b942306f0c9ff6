// SPDX-License-Identifier: MIT

// Adds optional parts to an adapter, in addition to A and B. The parameter
// `branch` is the matmul with B; its result's only reader is an add.

#ifndef QLORA_COMPILER_GRAPH_ADAPTERFORMS_H
#define QLORA_COMPILER_GRAPH_ADAPTERFORMS_H

#include "dialects/Model/Model.h"

#include "mlir/IR/BuiltinOps.h"

namespace qlora {

/// Adds PEFT's lora_B.bias, scaled like B's result.
void addAdapterBias(mlir::ModuleOp root, model::LinearOp branch,
                    mlir::StringRef module);

/// Adds DoRA (Liu et al., 2024), as PEFT does: W x + BA x is scaled by m / |W +
/// BA|, and the norm has no gradient. With dropout, `x` is x~, the input of
/// `product` after dropout, and the result is W x - W x~ + m / |W + BA| (W x~ +
/// BA x~).
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

#endif // QLORA_COMPILER_GRAPH_ADAPTERFORMS_H
