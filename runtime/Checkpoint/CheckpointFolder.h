// SPDX-License-Identifier: MIT

// Names and ownership of the checkpoints in an output folder.
//
//   checkpoint-N            complete, of the run that owns the folder
//   checkpoint-N.part.new   being written
//   checkpoint-N.part.old   being removed
//   checkpoint-N.replaced   of an earlier run, or later than the step that this
//                           run resumed from: only used if named explicitly.
//                           Kept until checkpoints are next replaced
//   .run                    the run's id, 32 hexadecimal digits
//
// A run gets its id when it starts from scratch or from a checkpoint in another
// folder. It keeps the id when it resumes in its own folder, and each of its
// checkpoints records it. Checkpoints of earlier versions of qlora have no id,
// and neither have runs that resume from them. Their folder has no .run.

#ifndef QLORA_RUNTIME_CHECKPOINT_CHECKPOINTFOLDER_H
#define QLORA_RUNTIME_CHECKPOINT_CHECKPOINTFOLDER_H

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

inline constexpr const char *kRunFile = ".run";

/// Returns the step of a folder named checkpoint-N, or -1.
int64_t checkpointStep(const std::string &folder);
std::string checkpointFolder(const std::string &output, int64_t step);
/// Returns the temporary name of a checkpoint-N that is being written.
std::string unfinishedCheckpoint(const std::string &folder);
/// Returns every checkpoint-N of `output`, newest first. `error` receives the
/// reason if the folder exists and cannot be read.
std::vector<std::string> checkpointsIn(const std::string &output,
                                       Status *error = nullptr);

std::string newRunId();
/// Returns the run id in a checkpoint's metadata; empty: none.
std::string runIdOf(const nlohmann::ordered_json &facts);
/// Returns the id of the run that owns `output`; empty: none.
std::string runIdIn(const std::string &output);

/// Returns whether the path names a checkpoint-N.replaced.
bool isReplaced(const std::string &folder);
/// Makes run `id` (empty: a run without an id) the owner of `output`. Renames
/// checkpoints of other runs, and those after `lastStep` (-1: all), to
/// checkpoint-N.replaced, and returns their old names.
StatusOr<std::vector<std::string>>
takeFolder(const std::string &output, const std::string &id, int64_t lastStep);

/// Returns whether `output` has unfinished checkpoints: checkpoint-N.part.new,
/// or checkpoint-N.part.new_old from an earlier version of qlora.
bool hasUnfinished(const std::string &output);
/// Renames unfinished checkpoints that have all files to checkpoint-N, unless
/// checkpoint-N exists. Such a checkpoint remains if a run is killed just
/// before this rename. Prefers .part.new to .part.new_old.
void recoverCheckpoints(const std::string &output);
/// Removes all unfinished checkpoints. Call recoverCheckpoints() first.
void removeUnfinished(const std::string &output);
/// Removes all checkpoints except the newest `limit` (0: keeps all) and the
/// checkpoint of step `best`. Ignores errors.
void removeOlderCheckpoints(const std::string &output, int64_t limit,
                            int64_t best);

} // namespace qlora

#endif // QLORA_RUNTIME_CHECKPOINT_CHECKPOINTFOLDER_H
