// SPDX-License-Identifier: MIT

// `qlora generate`: answers a prompt or the rows of a file. Makes a program
// that generates, as `qlora train` makes one that trains. Then qlora-data
// replaces this process: it starts qlora-run, and translates text to tokens.

#ifndef QLORA_TOOLS_QLORA_GENERATE_H
#define QLORA_TOOLS_QLORA_GENERATE_H

#include <span>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Options/CommandLine.h"

namespace qlora {

/// Own options of `qlora generate`, and options of `qlora train` that matter.
const Tool &generateTool();

/// Runs `qlora generate`. `words` follow the command's name. Returns only after
/// an error, --help or --dry-run.
Status generate(std::span<const std::string> words);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_GENERATE_H
