// SPDX-License-Identifier: MIT

// Describes a train.step for the recompute planner: ops with seconds, values
// with bytes, and shared memory after lowering.

#ifndef QLORA_COMPILER_MEMORY_STEPPROBLEM_H
#define QLORA_COMPILER_MEMORY_STEPPROBLEM_H

#include "compiler/PassMetadata.h"
#include "compiler/Support/RecomputePlanner.h"
#include "dialects/Train/Train.h"
#include "runtime/Kernels/DeviceProfile.h"

namespace qlora {

struct StepProblem {
  RecomputeProblem problem;
  /// The MLIR op of each entry of problem.ops.
  llvm::SmallVector<mlir::Operation *> ops;
  /// Number of forward ops, which come first.
  unsigned forwardOps = 0;
};

/// Describes everything in `step` except weights and inputs, which are always
/// in memory. The backward begins at the first op that reverse mode created.
/// Memory is shared as in StepMemory, which lower-to-program follows; values
/// outside of the step count zero bytes.
StepProblem buildStepProblem(train::StepOp step, const DeviceProfile &device);

/// Adds a problem and its plan to `facts`. Values and ops are indices:
///
///   "values": [[bytes, the value it is part of or -1]],
///   "ops": [{"op", "of", "block", "backward", "view", "seconds",
///            "inputs", "outputs",       // values
///            "ties": [[input, output]], // values
///            "before": [...],           // ops, see RecomputePlan
///            "stands_for"}]             // a value or -1
void addProblem(const StepProblem &described, const RecomputePlan &plan,
                MetadataBuilder &facts);

/// The zone of each op of `step` (RecomputePlanner.h). A recomputed op is in
/// the zone of the op that it was recomputed for.
using StepZones = llvm::DenseMap<mlir::Operation *, unsigned>;
StepZones zonesOf(train::StepOp step);

/// The place in its step where an op reads a weight: the forward of a layer, or
/// one zone of its backward, including recomputed ops. Uses in one place are
/// close to each other, so one decoded or gathered copy serves all of them.
struct UsePlace {
  bool isBackward = false;
  unsigned zone = 0;
  int64_t layer = -1;
  bool isReference = false;

  static UsePlace of(mlir::Operation *op, const StepZones &zones) {
    return {model::isBackward(op), zones.lookup(op), model::layerOf(op),
            model::isReference(op)};
  }
  bool operator==(const UsePlace &) const = default;
};

} // namespace qlora

#endif // QLORA_COMPILER_MEMORY_STEPPROBLEM_H
