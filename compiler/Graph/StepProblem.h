// SPDX-License-Identifier: MIT

// A train.step as the recompute planner sees it: ops with seconds, values with
// bytes, and who shares memory with whom once it is lowered.

#ifndef QLORA_COMPILER_GRAPH_STEPPROBLEM_H
#define QLORA_COMPILER_GRAPH_STEPPROBLEM_H

#include "compiler/Decisions.h"
#include "compiler/Support/RecomputePlanner.h"
#include "dialects/Train/Train.h"
#include "runtime/Kernels/DeviceProfile.h"

namespace qlora {

struct StepProblem {
  RecomputeProblem problem;
  /// The MLIR op of each entry of problem.ops.
  llvm::SmallVector<mlir::Operation *> ops;
  /// Entries before this one are the forward.
  unsigned forwardOps = 0;
};

/// Everything in `step` but weights and inputs, which are in memory anyway.
/// The backward begins at the first op that reverse mode created. Memory is
/// shared as StepMemory has it, which lower-to-program follows; what it puts
/// outside of the step has no bytes here.
StepProblem buildStepProblem(train::StepOp step, const DeviceProfile &device);

/// Adds a problem and its plan, as the planner has them:
///
///   "values": [[bytes, the value it is part of or -1]],
///   "ops": [{"op", "of", "block", "backward", "view", "seconds",
///            "inputs", "outputs",       // values
///            "ties": [[input, output]],
///            "before": [...],           // ops, see RecomputePlan
///            "stands_for"}]             // a value or -1
void addProblem(const StepProblem &described, const RecomputePlan &plan,
                Facts &facts);

/// Per op of `step`, the zone it is in (RecomputePlanner.h); a recomputed op is
/// in that of the op which it was recomputed for.
using StepZones = llvm::DenseMap<mlir::Operation *, unsigned>;
StepZones zonesOf(train::StepOp step);

/// Where in its step an op reads a weight. Uses in one place are near each
/// other: in the forward of a layer, or in one zone of its backward, recomputed
/// ops included. So what one of them makes of the weight serves all.
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

#endif // QLORA_COMPILER_GRAPH_STEPPROBLEM_H
