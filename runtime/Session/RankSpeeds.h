// SPDX-License-Identifier: MIT

// Relative speeds of ranks. A step's micro-batches are assigned in proportion
// (Data/MicroBatchAssignment.h), so that no rank waits for a slower GPU.
//
//   --rank-speeds 3 1     as measured by the user
//   (nothing)             the predicted time of a micro-batch on each known GPU
//                         (Kernels/KnownGpus.cpp); if one is unknown, and on
//                         CPUs, all speeds are equal
//
// Unused in lockstep, in which all ranks run equally many micro-batches.

#ifndef QLORA_RUNTIME_SESSION_RANKSPEEDS_H
#define QLORA_RUNTIME_SESSION_RANKSPEEDS_H

#include <string>
#include <vector>

#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Checks that the option fits a run of `module` on `ranks` ranks.
Status checkRankSpeeds(const Options &options, const LoadedModule &module,
                       int64_t ranks);

/// Returns the option's speed of each rank; empty if equal or not given.
std::vector<double> givenSpeeds(const Options &options, int64_t ranks);

/// Returns the text that a rank sends about its GPU (Device::hardware): its
/// name, and the seconds of a micro-batch of `module`'s longest rows, if known.
/// Programs may differ, so all ranks must use each rank's own prediction.
std::string speedReport(const std::string &gpu, const LoadedModule &module);

struct PredictedSpeeds {
  std::vector<double> speeds; ///< empty: all are equal, or one is unknown
  std::string remark;         ///< a note for the user, or empty
};
/// Computes the speeds from the texts of all ranks.
PredictedSpeeds speedsFromReports(const std::vector<std::string> &words);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_RANKSPEEDS_H
