// SPDX-License-Identifier: MIT

// Protects a run's output folder: existing results are not overwritten, and two
// runs cannot write into it at the same time.
//
// A run may use a folder that is missing, is empty, or holds only the following
// leftovers of an unfinished run, which has no adapter:
//
//   config.resolved.yaml   metrics.jsonl   gemm_table.json
//   trainer_log.jsonl      runs (event files)
//   environment.json  plan.json  sessions   (SessionRecord.h)
//   *.part.*   temporary files (AtomicFile.h, Adapter.h), removed when a run
//              claims the folder
//   .staging   reserved space and files of an adapter (Adapter.h)
//   .lock      held while a run writes, removed at its end
//   .run       the id of the run (CheckpointFolder.h)
//
// A .staging with a complete adapter is not a leftover: it could not be moved
// into place, and is the only copy.
//
// A complete checkpoint that was not yet renamed when its run was killed is
// renamed when the folder is claimed.
//
// Anything else, such as an adapter, a checkpoint-N or a user's file, requires
// --overwrite-output-dir, or --resume-from-checkpoint with a checkpoint in the
// folder. Then this run's new files replace existing ones, checkpoints are set
// aside (CheckpointFolder.h), and other files stay. An evaluation without
// training may use any folder: it only appends to metrics.jsonl.
//
// The lock is flock(2)'s: the system releases it when the process ends in any
// way. Rank 0 holds it, because only rank 0 writes.

#ifndef QLORA_RUNTIME_SESSION_OUTPUTFOLDER_H
#define QLORA_RUNTIME_SESSION_OUTPUTFOLDER_H

#include <optional>
#include <string>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Options/Options.h"
#include "runtime/Ranks/RankGroup.h"

namespace qlora {

/// Returns whether the options ask for training steps, not only an evaluation.
bool trains(const Options &options);

/// Returns the error that claim() would return for the folder's content, but
/// changes nothing. A launcher calls it before it starts ranks.
Status checkOutputFolder(const Options &options);

/// A folder that only this process writes to while this object exists.
class OutputFolder {
public:
  /// Claims output_dir, according to overwrite_output_dir. Creates the folder.
  static StatusOr<OutputFolder> claim(const Options &options);
  OutputFolder(OutputFolder &&) = default;
  OutputFolder &operator=(OutputFolder &&) = delete;
  /// Releases the folder; removes it if claim() created it and it is empty.
  ~OutputFolder();

  /// Returns a warning if the file system has no locks, else an empty string.
  const std::string &remark() const { return warning; }

private:
  OutputFolder(std::string path, bool isNew)
      : path(std::move(path)), isNew(isNew) {}
  Status lock();

  std::string path;
  std::string warning;
  FileDescriptor lockFile; ///< closed if this object was moved from
  bool isNew;
};

/// Claims the folder on rank 0; returns nothing on the other ranks. All ranks
/// call it, and all get an error if rank 0 fails.
StatusOr<std::optional<OutputFolder>> claimOutput(const Options &options,
                                                  RankGroup &group);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_OUTPUTFOLDER_H
