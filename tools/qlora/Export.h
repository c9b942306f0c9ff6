// SPDX-License-Identifier: MIT

// `qlora export`: writes a trained adapter in another form, and measures what
// the form loses. Each form is a row of the table in ExportFormats.h.

#ifndef QLORA_TOOLS_QLORA_EXPORT_H
#define QLORA_TOOLS_QLORA_EXPORT_H

#include <span>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Options/CommandLine.h"

namespace qlora {

const Tool &exportTool();

/// Runs `qlora export`. `words` follow the command's name.
Status exportRun(std::span<const std::string> words);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_EXPORT_H
