// SPDX-License-Identifier: MIT

// Flags that depend on the machines, GPUs and ranks of a run.

#ifndef QLORA_TOOLS_QLORA_MACHINEFLAGS_H
#define QLORA_TOOLS_QLORA_MACHINEFLAGS_H

#include "tools/qlora/Configuration.h"

namespace qlora {

/// Machine and rank settings of a command line.
struct Machines {
  Options runner{runnerRows()}, compiler{compilerRows()};
  bool isRanksSaid = false; ///< --ranks is given
  int64_t ranks = 1;        ///< on all machines
  int64_t localRanks = 1;   ///< on one machine

  /// Reads the ranks from --ranks, else a launcher's world size, else --gpus.
  static StatusOr<Machines> of(const CommandLine &line);
};

/// Chooses the target, and adds it and the flags of the network and the ranks.
/// Checks memory limits and rows per step. The target is part of the key of
/// cached programs.
Status addMachineFlags(const Machines &machines, ProgramUse use,
                       Configuration &result);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_MACHINEFLAGS_H
