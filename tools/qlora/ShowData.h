// SPDX-License-Identifier: MIT

// `qlora show-data`: prints training rows with the tokens in the loss marked.
// qlora-data converts the rows with the same flags as for training.

#ifndef QLORA_TOOLS_QLORA_SHOWDATA_H
#define QLORA_TOOLS_QLORA_SHOWDATA_H

#include <span>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Options/CommandLine.h"

namespace qlora {

/// Options of `qlora show-data`, including those of `qlora train`.
const Tool &showDataTool();

/// Runs `qlora show-data`. `words` follow the command's name. Returns only
/// after an error or --help.
Status showData(std::span<const std::string> words);

/// `qlora data FILE --show N`: the same, named by the file first.
const Tool &dataTool();
Status showFile(std::span<const std::string> words);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_SHOWDATA_H
