// SPDX-License-Identifier: MIT

// Ranks that run together were started alike. What each does on its own with
// the others in mind (how many labels they have, which command is captured,
// when a step is timed) goes by the program, the options and the data; where
// those differ, ranks would wait for each other for ever. Folders and files may
// have other names on another machine, and programs other plans (ProgramForm.h).

#ifndef QLORA_RUNTIME_SESSION_SAMEONRANKS_H
#define QLORA_RUNTIME_SESSION_SAMEONRANKS_H

#include "runtime/Data/Dataset.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Session/SessionRequest.h"

namespace qlora {

/// All ranks call it. An error names the first thing that this rank has
/// otherwise than rank 0, which has none.
Status checkSameOnRanks(const SessionRequest &request,
                        const LoadedModule &module, const Options &options,
                        RankGroup &group, const Dataset *train,
                        const Dataset *validation);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_SAMEONRANKS_H
