// SPDX-License-Identifier: MIT

// Options for pipeline stages.

#ifndef QLORA_TOOLS_QLORACC_PIPELINESETTINGS_H
#define QLORA_TOOLS_QLORACC_PIPELINESETTINGS_H

#include "tools/qloracc/Settings.h"

namespace qlora {

/// Sets the chunks of a micro-batch: a multiple of the stages if these have
/// several parts, as Megatron's interleaved schedule needs.
Status fillChunks(const Options &options, CompileOptions &compile);

/// Checks the stages' speeds, by which layers are assigned.
Status checkStageSpeeds(const CompileOptions &compile, int64_t stages);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_PIPELINESETTINGS_H
