// SPDX-License-Identifier: MIT

// `qlora show-data`: prints training rows with the tokens in the loss marked.
// qlora-data converts them with the flags that training passes to it.

#ifndef QLORA_TOOLS_QLORA_SHOWDATA_H
#define QLORA_TOOLS_QLORA_SHOWDATA_H

#include <span>
#include <string>

#include "runtime/Base/CommandLine.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Its own options and those of `qlora train`.
const Tool &showDataTool();

/// Runs `qlora show-data`. `words` follow the command's name. Returns only
/// after an error or an answer (--help).
Status showData(std::span<const std::string> words);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_SHOWDATA_H
