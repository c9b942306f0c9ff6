// SPDX-License-Identifier: MIT

// Where a run goes on: --resume-from-checkpoint.
//
//   DIR            that checkpoint, or the newest of that output folder
//   true, latest   the newest of --output-dir whose manifest verifies and which is
//                  of the folder's run; others are named and passed over.
//                  Without any checkpoint, training starts from scratch, and says
//                  so: a supervisor gives it on the first start too
//
// A checkpoint in --output-dir is resumed as the run that wrote it, and must be of
// the run that the folder belongs to. One that is elsewhere begins a run of its
// own (CheckpointFolder.h).
//
// Rank 0 reads checkpoints, from its own disk, and the others get what they need
// from it.

#ifndef QLORA_RUNTIME_SESSION_RESUME_H
#define QLORA_RUNTIME_SESSION_RESUME_H

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <vector>

#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

/// A checkpoint whose manifest has been verified.
struct ResumePoint {
  std::string folder;
  nlohmann::ordered_json facts; ///< CheckpointFacts.h
  nlohmann::ordered_json state; ///< Trainer::state()

  int64_t step() const { return facts.at("step"); }
  /// Whether it is one of `output`, under any name.
  bool isIn(const std::string &output) const;
  /// Of an earlier run on a GPU, to be used as it is; or empty.
  std::string gemmTable;
};

/// Whether the options ask to go on with what is in --output-dir, so that it
/// need not be empty.
bool resumesInto(const Options &options);

/// The checkpoint that the options mean; nothing where training starts anew.
/// All ranks call it and get the same; `remarks` are rank 0's.
StatusOr<std::optional<ResumePoint>>
findResumePoint(const Options &options, RankGroup &group,
                std::vector<std::string> &remarks);

/// A folder, and the id of the run that must have written it.
struct CheckpointName {
  std::string folder; ///< empty: there is none
  std::string run;
};

/// That checkpoint alone, which only rank 0 names. kNotFound where there is none.
StatusOr<ResumePoint> findCheckpoint(const CheckpointName &name,
                                     RankGroup &group);

/// Whether a checkpoint has residuals; one of an earlier version has none.
bool hasResiduals(const std::string &checkpoint);

/// TRAINABLE, STATE, RESIDUAL and ROUNDED of every rank := the checkpoint's. After
/// the weights are loaded; all ranks call it. An error names the file, the
/// tensor and both shapes.
Status restoreArenas(const ResumePoint &point, const LoadedModule &module,
                     Device &device, RankGroup &group);

/// The bytes of finalTensors() from a checkpoint, for rank 0 alone. It is compared
/// with its manifest first.
StatusOr<NextBytes> readTrained(const LoadedModule &module,
                                const Options &options,
                                const CheckpointName &checkpoint);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_RESUME_H
