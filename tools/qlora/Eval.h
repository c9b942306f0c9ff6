// SPDX-License-Identifier: MIT

// `qlora eval`: measures a model or an adapter on rows of training data. Makes
// a program that generates, as `qlora generate` does. Then qlora-data replaces
// this process: it converts the rows as for training, starts qlora-run, and
// compares the answers with the rows'.

#ifndef QLORA_TOOLS_QLORA_EVAL_H
#define QLORA_TOOLS_QLORA_EVAL_H

#include <span>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Options/CommandLine.h"

namespace qlora {

/// Own options of `qlora eval`, and options of `qlora train` that matter.
const Tool &evalTool();

/// Runs `qlora eval`. `words` follow the command's name. Returns only after an
/// error, --help or --dry-run.
Status evaluateModel(std::span<const std::string> words);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_EVAL_H
