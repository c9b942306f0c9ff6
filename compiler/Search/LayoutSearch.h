// SPDX-License-Identifier: MIT

// --parallel auto: chooses the parallel layout from the plan and the predicted
// step time of each possible mesh (runtime/Options/ParallelMesh.h).
//
// Chooses the fastest mesh whose plan fits the memory limit, or a simpler mesh
// if the cost model cannot distinguish the two. With --auto-find-batch-size
// each mesh has its own best batch, and times per row of data are compared.
//
//   qloracc: note: --parallel auto: 4 ranks, 24.0 GiB each; times are predicted
//   for NVIDIA H200 SXM
//   layout        batch     plan ms/step exposed
//   data parallel     1 38.2 GiB                 exceeds the limit by 14.2 GiB
//   fsdp=2 x 2        1 21.4 GiB 2310.40 9.10 ms chosen: the fastest that fits

#ifndef QLORA_COMPILER_SEARCH_LAYOUTSEARCH_H
#define QLORA_COMPILER_SEARCH_LAYOUTSEARCH_H

#include "compiler/Search/BatchSearch.h"

namespace qlora {

/// Prints a note: one or more lines, each with its newline.
using NotePrinter = llvm::function_ref<void(const std::string &)>;

/// Sets the layout and the batch of `settings` if options leave them to the
/// compiler, prints them with the reason, and records the layouts in `model`
/// for reports. If no plan fits, chooses the layout of the smallest plan, and
/// the compile reports the missing bytes. Errors are diagnostics of the model's
/// context.
mlir::LogicalResult findLayoutAndBatch(mlir::ModuleOp model,
                                       PlanSettings &settings,
                                       NotePrinter print);

/// The part of findLayoutAndBatch() for several ranks: `plan` plans `model` on
/// each layout, for a `device` that the note names.
mlir::LogicalResult findLayout(mlir::ModuleOp model, PlanSettings &settings,
                               const DeviceProfile &device, StepPlanner plan,
                               NotePrinter print);

} // namespace qlora

#endif // QLORA_COMPILER_SEARCH_LAYOUTSEARCH_H
