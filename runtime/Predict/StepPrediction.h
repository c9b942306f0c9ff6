// SPDX-License-Identifier: MIT

// What a step would take on a device that is not there: the commands of its
// entries, each with its work (CostModel.h) and the device's rates
// (DeviceProfile.h), on their queues (Timeline.h).
//
// A step of K micro-batches is K-1 times ACCUMULATE, then ACCUMULATE_LAST and
// UPDATE, each begun when the one before has ended. A library launch does what
// its row's host code would launch; a generated kernel reads or writes each
// operand once. Not in it: reading data, writing inputs, the host's waits
// between entries, and ranks that wait for a slower one.
//
// The stages of a pipeline run an entry together: what they send each other
// begins when both are there, and none begins the next entry before all have
// ended. What is shown is the stage with most to do; that it waits for others
// is exposed communication.

#ifndef QLORA_RUNTIME_PREDICT_STEPPREDICTION_H
#define QLORA_RUNTIME_PREDICT_STEPPREDICTION_H

#include <array>
#include <string>
#include <vector>

#include "runtime/Module/CommandWork.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Predict/Timeline.h"

namespace qlora {

/// The kernels of a part in one step of one rank.
struct PartTotal {
  Work work;
  double seconds = 0; ///< each alone, without its launch
};

/// Equal kernels of a step: one of them, and how many there are.
struct KernelGroup {
  std::string kernel; ///< of the table: "matmul.cublaslt", "rms_norm"
  std::string label;  ///< of the first launch
  StepPart part;
  Work work;
  Demand demand;
  double count = 0;
};

/// The collectives of one kind over one group in a step, or its copies over the
/// bus.
struct PredictedCollective {
  std::string_view kind, group;
  double count = 0;
  double bytes = 0; ///< of their larger operands
  double seconds = 0;
};

/// One step of each rank.
struct StepPrediction {
  int64_t ranks = 1, microBatches = 1;
  int64_t dataRanks = 1; ///< where those with the same rows count as one
  int64_t stage = 0, stages = 1;
  int64_t batch = 0, length = 0; ///< of a micro-batch
  double seconds = 0;
  std::array<PartTotal, size_t(StepPart::kCount)> parts;
  double launchSeconds = 0; ///< of all kernels
  double overlapped = 0;    ///< seconds that queues saved by running at once
  double exposedCommunication = 0;
  std::vector<PredictedCollective> collectives; ///< as they first come
  std::vector<KernelGroup> groups; ///< most seconds first

  /// Rows of Kernels.def that are taken to run, but for walks over rows; in
  /// the table's order.
  std::vector<std::string> rows() const;
  /// seconds = parts + launches - overlapped + exposed communication.
  Work work() const;
  /// Its kernels, each alone.
  double busySeconds() const;
  int64_t machines(int64_t gpusPerNode) const {
    return (ranks + gpusPerNode - 1) / gpusPerNode;
  }
  double tokensPerSecond() const { ///< of all ranks
    return double(dataRanks * microBatches * batch * length) / seconds;
  }
};

/// What the prediction is to hold for.
struct PredictionRequest {
  DeviceProfile device;
  int64_t ranks = 1;
  int64_t microBatches = 1; ///< gradient_accumulation_steps
  QueueSharing sharing = QueueSharing::kSideBySide;
  /// Rows of Kernels.def that do not run; the next row does.
  std::vector<std::string> disabledKernels = {};
};
/// What `request` asks for, as a GPU's low figure (lowRates).
PredictionRequest lowRequest(PredictionRequest request);

/// One prediction for each compiled length, ascending. A device of the other
/// kind than the module's target is refused, and so is a launch that no row is
/// left for. CPU ranks are all of one machine where
/// the device does not say how many a machine has (RankLinks).
StatusOr<std::vector<StepPrediction>>
predictSteps(const LoadedModule &module, const PredictionRequest &request);

/// The longest length's step on 1, 2, 4 ... times as many ranks as the mesh of
/// a module has, and on all of the request, each rank with as many micro-batches.
StatusOr<std::vector<StepPrediction>>
predictScaling(const LoadedModule &module, PredictionRequest request);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_STEPPREDICTION_H
