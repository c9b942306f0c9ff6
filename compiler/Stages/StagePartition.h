// SPDX-License-Identifier: MIT

// Assigns each pipeline stage a consecutive, non-empty range of layers.
//
//   balanced     minimizes the time of the slowest stage, by the cost model; a
//                stage with a faster GPU gets more layers
//   sequential   from the first stage on, as many layers as the memory limit
//                allows, counting their frozen weights, as Accelerate's
//                "sequential"; each later stage has at least one
//   {"model.embed_tokens": 0, "model.layers.0": 0, ..., "lm_head": 1}
//                as Accelerate's device map: a module gets the number of the
//                longest entry that is a prefix of its name; "" fits all names

#ifndef QLORA_COMPILER_STAGES_STAGEPARTITION_H
#define QLORA_COMPILER_STAGES_STAGEPARTITION_H

#include "runtime/Kernels/DeviceProfile.h"

#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringMap.h"

namespace qlora {

struct StagePartitionOptions {
  int64_t stages = 1;
  /// Relative speeds of the stages, for `balanced`; empty: all are equal.
  llvm::ArrayRef<int64_t> speeds = {};
  llvm::StringRef map = "balanced"; ///< or "sequential", or JSON
  int64_t memoryLimit = 0; ///< bytes per stage, for `sequential`
};

/// Returns the stage of each layer, computed from the longest forward function
/// and valid for all; empty without functions. Fails for too few layers, and
/// for a map that omits or splits a layer or returns to an earlier stage.
llvm::FailureOr<llvm::SmallVector<int64_t>>
partitionLayers(mlir::ModuleOp module, const StagePartitionOptions &options,
                const DeviceProfile &device);

/// Fails if a map places a module outside of layers on a stage that does not
/// use it. `users` are the stages that use each parameter.
llvm::LogicalResult
checkMapped(mlir::ModuleOp module, llvm::StringRef map,
            const llvm::StringMap<llvm::SmallVector<int64_t>> &users);

} // namespace qlora

#endif // QLORA_COMPILER_STAGES_STAGEPARTITION_H
