// SPDX-License-Identifier: MIT

// Where a run goes on: --resume-from-checkpoint.
//
//   DIR            that checkpoint, or the newest of that output folder
//   true, latest   the newest of --output-dir whose manifest verifies; a damaged
//                  one is named and passed over. Without any, training starts
//                  anew, and says so: a supervisor gives it on the first start
//                  too
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

namespace qlora {

/// A checkpoint whose manifest has been verified.
struct ResumePoint {
  std::string folder;
  nlohmann::ordered_json facts; ///< CheckpointFacts.h
  nlohmann::ordered_json state; ///< Trainer::state()

  int64_t step() const { return facts.at("step"); }
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

/// The newest of `output` alone, in the same way.
StatusOr<std::optional<ResumePoint>>
findNewestPoint(const std::string &output, RankGroup &group,
                std::vector<std::string> &remarks);

/// TRAINABLE, STATE, RESIDUAL and ROUNDED of every rank := the checkpoint's. After
/// the weights are loaded; all ranks call it. An error names the file, the
/// tensor and both shapes.
Status restoreArenas(const ResumePoint &point, const LoadedModule &module,
                     Device &device, RankGroup &group);

/// `checkpoint`'s adapter as the TRAINABLE arena has it, or its image.
StatusOr<std::vector<uint8_t>> readTrained(const LoadedModule &module,
                                           const std::string &checkpoint);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_RESUME_H
