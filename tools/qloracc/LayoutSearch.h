// SPDX-License-Identifier: MIT

// --parallel auto: how the ranks share the model, from the plan and the
// predicted step of each mesh that they can have (runtime/Base/ParallelMesh.h).
//
// Of those whose plan fits the memory limit it takes the fastest; of those that
// the cost model cannot tell from it, the simplest. With
// --auto-find-batch-size each of them has the batch that is best for it, and a
// row of data is what is compared.
//
//   qloracc: note: --parallel auto: 4 ranks, 24.0 GiB each; times are predicted
//   for NVIDIA H200 SXM
//     layout         batch      plan  ms/step  exposed
//     data parallel      1  38.2 GiB                    does not fit by 14.2 GiB
//     fsdp=2 x 2         1  21.4 GiB  2310.40  9.1 ms  0.4 %  chosen: the fastest
//                                                             that fits

#ifndef QLORA_TOOLS_QLORACC_LAYOUTSEARCH_H
#define QLORA_TOOLS_QLORACC_LAYOUTSEARCH_H

#include "mlir/IR/BuiltinOps.h"

#include "tools/qloracc/Settings.h"

namespace qlora {

/// Sets the layout and the batch of `settings` where they are to be found, says
/// which and why, and records it in `model` for reports. Where no plan fits, the
/// layout is that of the smallest, whose compile then says what is missing.
/// Errors are diagnostics of the model's context.
mlir::LogicalResult findLayoutAndBatch(mlir::ModuleOp model,
                                       CompilerSettings &settings);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_LAYOUTSEARCH_H
