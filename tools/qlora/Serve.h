// SPDX-License-Identifier: MIT

// `qlora serve`: answers requests of OpenAI's API over HTTP. Makes a program
// that generates. Then qlora-data replaces this process: it starts qlora-run,
// and has the server.

#ifndef QLORA_TOOLS_QLORA_SERVE_H
#define QLORA_TOOLS_QLORA_SERVE_H

#include <span>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Options/CommandLine.h"

namespace qlora {

/// Own options of `qlora serve`, and options of `qlora train` that matter.
const Tool &serveTool();

/// Runs `qlora serve`. `words` follow the command's name. Returns only after an
/// error, --help or --dry-run.
Status serve(std::span<const std::string> words);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_SERVE_H
