// SPDX-License-Identifier: MIT

// Checks that all ranks were started with the same arguments. Each rank
// computes separately, from the program, the options and the data, how many
// labels the others have, which command is captured and when a step is timed.
// If ranks got different answers, they would wait for each other forever. Paths
// and memory plans (ProgramForm.h) may differ.

#ifndef QLORA_RUNTIME_SESSION_RANKCONSISTENCYCHECK_H
#define QLORA_RUNTIME_SESSION_RANKCONSISTENCYCHECK_H

#include "runtime/Data/Dataset.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Session/SessionRequest.h"

namespace qlora {

/// Returns an error that names the first difference from rank 0; rank 0 gets no
/// error. All ranks call it.
Status checkRankConsistency(const SessionRequest &request,
                            const LoadedModule &module, const Options &options,
                            RankGroup &group, const Dataset *train,
                            const Dataset *validation);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_RANKCONSISTENCYCHECK_H
