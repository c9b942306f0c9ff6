// SPDX-License-Identifier: MIT

// The output folder of a run: nobody's work is written over, and no two runs
// write into it at once.
//
// A run may use a folder that is missing, empty, or holds only what an
// unfinished run left, which has no adapter:
//
//   config.resolved.yaml   metrics.jsonl   gemm_table.json
//   trainer_log.jsonl      runs (event files)
//   environment.json  plan.json  sessions   (SessionRecord.h)
//   *.part.*   what was not renamed any more (AtomicFile.h, Adapter.h); files
//              are removed when the folder is claimed
//   .staging   the space and the parts of an adapter (Adapter.h)
//   .lock      held while a run writes, removed at its end
//   .run       the id of the run (CheckpointFolder.h)
//
// A .staging whose adapter is whole is no leftover: it could not be put in its
// place, and nobody has another one.
//
// A checkpoint that is whole, and had not got its name when its run was killed, gets
// it when the folder is claimed.
//
// Anything else, such as an adapter, a checkpoint-N or a file of the user's,
// wants --overwrite-output-dir, or --resume-from-checkpoint with a checkpoint in
// the folder. Then files of ours are replaced when this run
// has new ones, checkpoints are set aside (CheckpointFolder.h), and others stay. An evaluation alone may use any folder: it
// adds to metrics.jsonl, and writes nothing else.
//
// The lock is flock(2)'s: the system lets go of it when the process ends,
// however that happens. Rank 0 has it, since it alone writes.

#ifndef QLORA_RUNTIME_SESSION_OUTPUTFOLDER_H
#define QLORA_RUNTIME_SESSION_OUTPUTFOLDER_H

#include <optional>
#include <string>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"
#include "runtime/Ranks/RankGroup.h"

namespace qlora {

/// Whether there are steps to do, or only an evaluation.
bool trains(const Options &options);

/// What claim() would refuse for the folder's content; changes nothing. For a
/// launcher, before it starts ranks.
Status checkOutputFolder(const Options &options);

/// A folder that this process alone writes to, as long as this lives.
class OutputFolder {
public:
  /// Of output_dir and overwrite_output_dir. Creates the folder.
  static StatusOr<OutputFolder> claim(const Options &options);
  OutputFolder(OutputFolder &&) = default;
  OutputFolder &operator=(OutputFolder &&) = delete;
  /// Also removes a folder that claim() made and nothing was written to.
  ~OutputFolder();

  /// A warning where the file system has no locks, or empty.
  const std::string &remark() const { return warning; }

private:
  OutputFolder(std::string path, bool isNew)
      : path(std::move(path)), isNew(isNew) {}
  Status lock();

  std::string path;
  std::string warning;
  FileDescriptor lockFile; ///< closed: moved from
  bool isNew;
};

/// Rank 0's claim; nothing on the others. All ranks call it, and all get an
/// error where rank 0 is refused.
StatusOr<std::optional<OutputFolder>> claimOutput(const Options &options,
                                                  RankGroup &group);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_OUTPUTFOLDER_H
