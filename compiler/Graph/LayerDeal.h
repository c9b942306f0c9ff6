// SPDX-License-Identifier: MIT

// Which stage of a pipeline has which layers: one run of them each, none empty.
//
//   balanced     the slowest stage is as fast as can be, by the cost model; a
//                stage of another speed (its card's) has so much more or less
//   sequential   each, from the first on, as many as the memory limit has room for,
//                by their frozen weights, as Accelerate's "sequential"; the others
//                have at least one
//   {"model.embed_tokens": 0, "model.layers.0": 0, ..., "lm_head": 1}
//                as a device map of Accelerate's says: a module's number is that
//                of the longest name that it begins with, "" being all

#ifndef QLORA_COMPILER_GRAPH_LAYERDEAL_H
#define QLORA_COMPILER_GRAPH_LAYERDEAL_H

#include "runtime/Kernels/DeviceProfile.h"

#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringMap.h"

namespace qlora {

struct LayerDealOptions {
  int64_t stages = 1;
  /// Of stages beside each other, for `balanced`; empty: all are equal.
  llvm::ArrayRef<int64_t> speeds = {};
  llvm::StringRef map = "balanced"; ///< or sequential, or JSON
  int64_t memoryLimit = 0; ///< of a stage, for `sequential`
};

/// The stage of each layer, for all forward functions of a module alike, by the
/// longest; of a module without them nothing. An error is reported where layers
/// are too few, or a map leaves one out, divides one or goes back.
llvm::FailureOr<llvm::SmallVector<int64_t>>
dealLayers(mlir::ModuleOp module, const LayerDealOptions &options,
           const DeviceProfile &device);

/// Whether what a map says of modules outside of layers is so: `users`, by
/// parameter, are the stages that use it. A mistake is reported.
llvm::LogicalResult
checkMapped(mlir::ModuleOp module, llvm::StringRef map,
            const llvm::StringMap<llvm::SmallVector<int64_t>> &users);

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_LAYERDEAL_H
