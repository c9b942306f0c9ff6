// SPDX-License-Identifier: MIT

// Settings from the options for pipeline stages.

#ifndef QLORA_TOOLS_QLORACC_PIPELINESETTINGS_H
#define QLORA_TOOLS_QLORACC_PIPELINESETTINGS_H

#include "tools/qloracc/Settings.h"

namespace qlora {

/// Sets the number of chunks of a micro-batch. With virtual stages it is a
/// multiple of the stages, as Megatron's interleaved schedule needs.
Status fillChunks(const Options &options, CompileOptions &compile);

/// Checks --stage-speeds, which determines the layers of each of the `stages`.
Status checkStageSpeeds(const CompileOptions &compile, int64_t stages);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_PIPELINESETTINGS_H
