// SPDX-License-Identifier: MIT

// --resume-from-checkpoint: finds the checkpoint from which a run resumes.
//
//   DIR            the checkpoint DIR, or the newest in the output folder DIR
//   true, latest   the newest of --output-dir with a valid manifest and the
//                  folder's run id; skipped checkpoints are reported. Without
//                  any checkpoint, training starts from scratch and says so,
//                  so that a supervisor can always pass the option
//
// A run that resumes from a checkpoint in --output-dir continues the run that
// wrote it, the folder's owner. From another folder, a new run starts
// (CheckpointFolder.h).
//
// Rank 0 reads checkpoints from its disk and sends data to the other ranks.

#ifndef QLORA_RUNTIME_CHECKPOINT_RESUME_H
#define QLORA_RUNTIME_CHECKPOINT_RESUME_H

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Options/Options.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

/// A checkpoint whose manifest has been verified.
struct ResumePoint {
  std::string folder;
  /// The checkpoint's metadata (CheckpointMetadata.h).
  nlohmann::ordered_json facts;
  nlohmann::ordered_json state; ///< the value of Trainer::state()

  int64_t step() const { return facts.at("step"); }
  /// Returns whether the checkpoint is in `output`, under any name.
  bool isIn(const std::string &output) const;
  /// Path of the earlier run's table of GPU matmul algorithms, or empty.
  std::string gemmTable;
};

/// Returns whether the options resume from --output-dir.
bool resumesInto(const Options &options);

/// Returns the selected checkpoint; nothing if training starts from scratch.
/// All ranks call it and get the same; `remarks` is for rank 0.
StatusOr<std::optional<ResumePoint>>
findResumePoint(const Options &options, RankGroup &group,
                std::vector<std::string> &remarks);

/// A checkpoint folder and the id of the run that must have written it.
struct CheckpointName {
  std::string folder; ///< empty: there is no checkpoint
  std::string run;
};

/// Loads rank 0's `name` on all ranks. kNotFound if there is no checkpoint.
StatusOr<ResumePoint> findCheckpoint(const CheckpointName &name,
                                     RankGroup &group);

/// Returns whether a checkpoint has residuals; earlier versions wrote none.
bool hasResiduals(const std::string &checkpoint);

/// Restores TRAINABLE, STATE, RESIDUAL and ROUNDED of every rank from the
/// checkpoint, after the weights are loaded. All ranks call it. Errors name the
/// file, the tensor and both shapes.
Status restoreArenas(const ResumePoint &point, const LoadedModule &module,
                     Device &device, RankGroup &group);

/// Returns the bytes of finalTensors() from a checkpoint. Only for rank 0.
/// Verifies the checkpoint against its manifest first.
StatusOr<NextBytes> readTrained(const LoadedModule &module,
                                const Options &options,
                                const CheckpointName &checkpoint);

} // namespace qlora

#endif // QLORA_RUNTIME_CHECKPOINT_RESUME_H
