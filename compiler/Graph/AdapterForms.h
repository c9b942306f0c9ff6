// SPDX-License-Identifier: MIT

// What an adapter may have beside A and B. `branch` is the product with B,
// which one add reads.

#ifndef QLORA_COMPILER_GRAPH_ADAPTERFORMS_H
#define QLORA_COMPILER_GRAPH_ADAPTERFORMS_H

#include "dialects/Model/Model.h"

#include "mlir/IR/BuiltinOps.h"

namespace qlora {

/// B's own bias, which is scaled as B is.
void addAdapterBias(mlir::ModuleOp root, model::LinearOp branch,
                    mlir::StringRef module);

/// DoRA (Liu et al., 2024), as PEFT has it: W x + BA x become m / |W + BA|
/// times themselves, where the norm has no gradient. Behind a dropout, where
/// `x` is not the product's, only what this changes is of the dropped x~:
/// W x - W x~ + m / |W + BA| (W x~ + BA x~).
void addMagnitude(mlir::ModuleOp root, model::WeightedProduct product,
                  mlir::Value x, model::WeightOp weightA,
                  model::LinearOp branch);

/// A and B start as factors of the product's weight (kAdapterFactorsAttr, whose
/// entry goes into `factors`). An error where the weight cannot be decomposed.
mlir::LogicalResult recordFactors(mlir::ModuleOp root,
                                  model::WeightedProduct product, int64_t rank,
                                  double scale, mlir::NamedAttrList &factors);

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_ADAPTERFORMS_H
