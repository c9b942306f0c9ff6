// SPDX-License-Identifier: MIT

// What the command line says of host memory.

#ifndef QLORA_TOOLS_QLORACC_OFFLOADSETTINGS_H
#define QLORA_TOOLS_QLORACC_OFFLOADSETTINGS_H

#include "tools/qloracc/Settings.h"

namespace qlora {

/// What is to be there, by its names.
Status fillOffload(const Options &options, CompileOptions &compile);

/// Whether that goes with the target and with how ranks share the model.
Status checkOffload(const CompilerSettings &settings);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_OFFLOADSETTINGS_H
