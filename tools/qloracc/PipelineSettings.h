// SPDX-License-Identifier: MIT

// What the command line says of a pipeline's stages.

#ifndef QLORA_TOOLS_QLORACC_PIPELINESETTINGS_H
#define QLORA_TOOLS_QLORACC_PIPELINESETTINGS_H

#include "tools/qloracc/Settings.h"

namespace qlora {

/// Chunks of a micro-batch, of which the stages of a pipeline have one each; of
/// stages with several parts a multiple of them, as Megatron's schedule needs.
Status fillChunks(const Options &options, CompileOptions &compile);

/// Layers are dealt by the speeds of those that have them.
Status checkStageSpeeds(const CompileOptions &compile, int64_t stages);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_PIPELINESETTINGS_H
