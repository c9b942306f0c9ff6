// SPDX-License-Identifier: MIT

// Checkpoints of an output folder: which there are, and whose.
//
//   checkpoint-N            whole, of the run that the folder belongs to
//   checkpoint-N.part.new   one that is being written
//   checkpoint-N.replaced   of a run before, or later than where this run was
//                           resumed: only an explicit path takes it. Kept until
//                           checkpoints are replaced the next time
//   .run                    the run's id, 32 hexadecimal digits
//
// A run gets its id when it starts from scratch, or from a checkpoint in another
// folder, and keeps it however often it is resumed in its own folder. Every
// checkpoint names it. Checkpoints of earlier versions have none, and neither has
// a run that is resumed from one: they match a folder without .run.

#ifndef QLORA_RUNTIME_SESSION_CHECKPOINTFOLDER_H
#define QLORA_RUNTIME_SESSION_CHECKPOINTFOLDER_H

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

inline constexpr const char *kRunFile = ".run";

/// The step of a folder that is named checkpoint-N, or -1.
int64_t checkpointStep(const std::string &folder);
std::string checkpointFolder(const std::string &output, int64_t step);
/// A checkpoint-N while it is written.
std::string unfinishedCheckpoint(const std::string &folder);
/// Every checkpoint-N of `output`, the newest first.
std::vector<std::string> checkpointsIn(const std::string &output);

std::string newRunId();
/// The id that a checkpoint's facts name; empty: none.
std::string runIdOf(const nlohmann::ordered_json &facts);
/// The id of the run that `output` belongs to; empty: none.
std::string runIdIn(const std::string &output);

/// Whether a path is that of a checkpoint-N.replaced.
bool isReplaced(const std::string &folder);
/// Makes `output` the folder of the run `id`, which may be empty. Checkpoints
/// later than `lastStep` (-1: all), and those of other runs, become
/// checkpoint-N.replaced. Returns their names.
StatusOr<std::vector<std::string>>
takeFolder(const std::string &output, const std::string &id, int64_t lastStep);

/// Whether recoverCheckpoints() might find one.
bool hasUnfinished(const std::string &output);
/// Gives every unfinished checkpoint its name if it is whole and the name is
/// free: the process was killed before its last rename. The file system may have
/// left what was to be replaced under a name of its own, which is second choice.
void recoverCheckpoints(const std::string &output);
/// Removes what recoverCheckpoints() has not found whole.
void removeUnfinished(const std::string &output);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_CHECKPOINTFOLDER_H
