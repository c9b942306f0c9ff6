// SPDX-License-Identifier: MIT

// `--device null`: walks every entry on a device that checks each command and
// address and computes nothing, and counts what a step of N ranks would do.
// Needs no weights and no data.

#ifndef QLORA_RUNTIME_SESSION_NULLRUN_H
#define QLORA_RUNTIME_SESSION_NULLRUN_H

#include <string>

#include "runtime/Core/ModuleLoader.h"
#include "runtime/Core/Options.h"
#include "runtime/Core/Status.h"

namespace qlora {

/// A table: commands and bytes of each entry, and of a step on `ranks` ranks.
StatusOr<std::string> checkOnNullDevice(const LoadedModule &module,
                                        const Options &options, int ranks);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_NULLRUN_H
