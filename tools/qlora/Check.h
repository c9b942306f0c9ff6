// SPDX-License-Identifier: MIT

// `qlora check`: whether PEFT, vLLM, llama.cpp and ollama can load an adapter
// or a model, also before it is trained.

#ifndef QLORA_TOOLS_QLORA_CHECK_H
#define QLORA_TOOLS_QLORA_CHECK_H

#include <span>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Options/CommandLine.h"

namespace qlora {

/// The command line of `qlora check`: --for, and the options of `qlora train`.
const Tool &checkTool();

/// Prints a table. Returns kInvalidArgument if a target does not fit.
Status check(std::span<const std::string> words);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_CHECK_H
