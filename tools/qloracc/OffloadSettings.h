// SPDX-License-Identifier: MIT

// Settings from the options that offload to pinned host memory.

#ifndef QLORA_TOOLS_QLORACC_OFFLOADSETTINGS_H
#define QLORA_TOOLS_QLORACC_OFFLOADSETTINGS_H

#include "tools/qloracc/Settings.h"

namespace qlora {

/// Enables the kinds of offloading that --offload names.
Status fillOffload(const Options &options, CompileOptions &compile);

/// Refuses offloading that the target or the parallel layout rules out.
Status checkOffload(const CompilerSettings &settings);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_OFFLOADSETTINGS_H
