// SPDX-License-Identifier: MIT

// Checks a run's options and files before compilation, for `qlora train`. Makes
// the same checks as the run, and changes nothing on the disk.

#ifndef QLORA_RUNTIME_SESSION_RUNCHECK_H
#define QLORA_RUNTIME_SESSION_RUNCHECK_H

#include "runtime/Base/Status.h"
#include "runtime/Options/Options.h"

namespace qlora {

/// Checks the options of a run before its program is compiled. `follows`: the
/// run starts right afterwards, so its output folder must be usable now.
Status checkRun(const Options &options, bool follows);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_RUNCHECK_H
