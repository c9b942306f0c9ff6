// SPDX-License-Identifier: MIT

// `qlora chat`: a conversation with a model, an adapter or a program that
// generates, on a terminal or in a pipe.

#ifndef QLORA_TOOLS_QLORA_CHAT_H
#define QLORA_TOOLS_QLORA_CHAT_H

#include <span>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Options/CommandLine.h"

namespace qlora {

/// The command line of `qlora chat`.
const Tool &chatTool();

/// Compiles the program if it does not exist. Then replaces this process by
/// qlora-data, which starts qlora-run. Returns only after an error, --help or
/// --dry-run.
Status chat(std::span<const std::string> words);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_CHAT_H
