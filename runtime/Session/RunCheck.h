// SPDX-License-Identifier: MIT

// What a run would refuse that its options and files alone show: `qlora train`
// asks before it compiles. Each rule is where the run has it; nothing is
// changed on the disk.

#ifndef QLORA_RUNTIME_SESSION_RUNCHECK_H
#define QLORA_RUNTIME_SESSION_RUNCHECK_H

#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Options of a run that is compiled for them: no program has recorded any.
/// `follows`: the run starts after this, and needs its output folder now.
Status checkRun(const Options &options, bool follows);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_RUNCHECK_H
