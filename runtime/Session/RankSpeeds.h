// SPDX-License-Identifier: MIT

// How fast ranks are beside each other, by which the micro-batches of a step are
// dealt to them (Data/Deal.h), so that none waits for a slower card.
//
//   --rank-speeds 3 1     what somebody has measured
//   (nothing)             of known cards (Kernels/KnownCards.cpp) what a step is
//                         predicted to take on each; else all are equal, as CPUs
//                         are
//
// Only where ranks meet once a step: those that share a model run the same
// micro-batches.

#ifndef QLORA_RUNTIME_SESSION_RANKSPEEDS_H
#define QLORA_RUNTIME_SESSION_RANKSPEEDS_H

#include <string>
#include <vector>

#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Whether the option fits a run of so many ranks of `module`.
Status checkRankSpeeds(const Options &options, const LoadedModule &module,
                       int64_t ranks);

/// What the option says, of each of `ranks` ranks; none: they are equal, or
/// nothing is said.
std::vector<double> givenSpeeds(const Options &options, int64_t ranks);

/// What a rank tells the others of its card (Device::hardware): the name, and the
/// seconds of a micro-batch of `module`'s longest rows on it, if they are known.
/// Programs and machines may differ: what all go by has to be one rank's word.
std::string wordOfCard(const std::string &card, const LoadedModule &module);

struct PredictedSpeeds {
  std::vector<double> speeds; ///< none: all are equal, or one is not known
  std::string remark;         ///< what the user should know, or nothing
};
/// By the words of all ranks.
PredictedSpeeds speedsOf(const std::vector<std::string> &words);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_RANKSPEEDS_H
