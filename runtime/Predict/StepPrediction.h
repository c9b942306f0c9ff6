// SPDX-License-Identifier: MIT

// Predicts a step on a device that this machine need not have. The commands of
// its entries, with their work (CostModel.h), run on their queues (Timeline.h)
// at the device's rates (DeviceProfile.h).
//
// A step of K micro-batches is K-1 times ACCUMULATE, then ACCUMULATE_LAST and
// UPDATE; each begins when the one before has ended. A library launch has the
// kernels that its row's host code would launch; a generated kernel reads or
// writes each operand once. Not counted: reading data, writing inputs, the
// host's waits between entries, and waits for slower ranks.
//
// The stages of a pipeline run an entry together. A transfer begins when both
// stages have reached it, and no stage begins the next entry before all have
// ended. The result is for the stage with the most work; its waits for other
// stages are exposed communication.
//
// In a program that generates, one run of PREFILL or DECODE counts as a step.

#ifndef QLORA_RUNTIME_PREDICT_STEPPREDICTION_H
#define QLORA_RUNTIME_PREDICT_STEPPREDICTION_H

#include <array>
#include <string>
#include <vector>

#include "runtime/Module/CommandWork.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Predict/Timeline.h"

namespace qlora {

/// All kernels of one StepPart in a step, on one rank.
struct PartTotal {
  Work work;
  double seconds = 0; ///< kernel times, each alone, without launches
};

/// Equal kernels of a step: a description of one, and their number.
struct KernelGroup {
  std::string kernel; ///< name in Kernels.def: "matmul.cublaslt", "rms_norm"
  std::string label;  ///< label of the first launch
  StepPart part;
  Work work;
  Demand demand;
  double count = 0;
};

/// A step's collectives of one kind over one group, or copies over a GPU's bus.
struct PredictedCollective {
  std::string_view kind, group;
  double count = 0;
  double bytes = 0; ///< bytes of their larger operands
  double seconds = 0;
};

/// The prediction of one step.
struct StepPrediction {
  /// The entry that is the whole step; QLORA_ENTRY_UPDATE: a step of training.
  qlora_entry_kind entry = QLORA_ENTRY_UPDATE;
  int64_t ranks = 1, microBatches = 1;
  int64_t dataRanks = 1; ///< ranks with the same rows count as one
  int64_t stage = 0, stages = 1;
  int64_t batch = 0, length = 0; ///< shape of a micro-batch
  double seconds = 0; ///< parts + launches - overlapped + exposed
  std::array<PartTotal, size_t(StepPart::kCount)> parts;
  double launchSeconds = 0; ///< launch time of all kernels
  double overlapped = 0;    ///< seconds saved by concurrent queues
  double exposedCommunication = 0;
  std::vector<PredictedCollective> collectives; ///< sorted by first use
  std::vector<KernelGroup> groups; ///< most seconds first

  /// Returns the names of the kernels of Kernels.def that run, in table order.
  /// Kernels of WorkCategory::kRows (CostModel.h) are left out.
  std::vector<std::string> rows() const;
  Work work() const;
  /// Returns the sum of the kernels' times, as if each ran alone.
  double busySeconds() const;
  int64_t machines(int64_t gpusPerNode) const {
    return (ranks + gpusPerNode - 1) / gpusPerNode;
  }
  double tokensPerSecond() const { ///< sum of all ranks
    return double(dataRanks * microBatches * batch * length) / seconds;
  }
};

struct PredictionRequest {
  DeviceProfile device;
  int64_t ranks = 1;
  int64_t microBatches = 1; ///< gradient_accumulation_steps
  QueueSharing sharing = QueueSharing::kSideBySide;
  /// Disabled rows of Kernels.def; the next row of the op runs instead.
  std::vector<std::string> disabledKernels = {};
};
/// Returns `request` with a GPU's low rates (lowRates).
PredictionRequest lowRequest(PredictionRequest request);

/// Returns one prediction for each compiled length, ascending. Refuses a device
/// of another kind than the module's target, and a launch without an enabled
/// row. If the profile lacks RankLinks, all CPU ranks are on one machine.
StatusOr<std::vector<StepPrediction>>
predictSteps(const LoadedModule &module, const PredictionRequest &request);

/// Returns one prediction for each entry that generates, in the order of the
/// module. Refuses what predictSteps() refuses.
StatusOr<std::vector<StepPrediction>>
predictGeneration(const LoadedModule &module, const PredictionRequest &request);

/// Predicts the longest length's step on 1, 2, 4 ... meshes of the module, and
/// on all ranks of the request. Micro-batches per rank stay the same.
StatusOr<std::vector<StepPrediction>>
predictScaling(const LoadedModule &module, PredictionRequest request);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_STEPPREDICTION_H
