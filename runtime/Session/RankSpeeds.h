// SPDX-License-Identifier: MIT

// Relative speeds of ranks. A rank's number of micro-batches is proportional to
// its speed (Data/MicroBatchAssignment.h), so no rank waits for a slower GPU.
//
//   --rank-speeds 3 1     as measured by the user
//   (nothing)             from the predicted time of a micro-batch on each GPU;
//                         speeds are equal on CPUs, and if any GPU is not in
//                         Kernels/KnownGpus.cpp
//
// In lockstep, all ranks run equally many micro-batches and speeds are unused.

#ifndef QLORA_RUNTIME_SESSION_RANKSPEEDS_H
#define QLORA_RUNTIME_SESSION_RANKSPEEDS_H

#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Options/Options.h"

namespace qlora {

/// Checks that the option fits a run of `module` on `ranks` ranks.
Status checkRankSpeeds(const Options &options, const LoadedModule &module,
                       int64_t ranks);

/// Returns the option's speed of each rank; empty if equal or not given.
std::vector<double> givenSpeeds(const Options &options, int64_t ranks);

/// Returns the text that a rank sends to the others: its GPU's name
/// (traits.hardware) and the predicted seconds of a micro-batch of `module`'s
/// longest rows, if known. Ranks may run different programs (ProgramChoice.h).
std::string speedReport(const std::string &gpu, const LoadedModule &module);

struct PredictedSpeeds {
  std::vector<double> speeds; ///< empty: all are equal, or one is unknown
  std::string remark;         ///< a note for the user, or empty
};
/// Computes the speeds from the texts of all ranks.
PredictedSpeeds speedsFromReports(const std::vector<std::string> &words);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_RANKSPEEDS_H
