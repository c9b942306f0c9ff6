// SPDX-License-Identifier: MIT

// Settings of the options in the section Generation.

#ifndef QLORA_TOOLS_QLORACC_GENERATIONSETTINGS_H
#define QLORA_TOOLS_QLORACC_GENERATIONSETTINGS_H

#include "tools/qloracc/Settings.h"

namespace qlora {

/// Sets the shapes of generation (--generation-batch). Its functions run on
/// whole rows and whole weights. Refuses options that only training has if the
/// program does not train.
Status fillGeneration(const Options &o, CompileOptions &c);

/// Sets the shape of adapters that rows choose (--max-loras): plain LoRA, whose
/// B the runtime multiplies by alpha / rank. Call it after the settings of
/// LoRA.
Status fillAdapterChoice(const Options &o, CompileOptions &c);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_GENERATIONSETTINGS_H
