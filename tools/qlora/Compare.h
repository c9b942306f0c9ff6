// SPDX-License-Identifier: MIT

// `qlora compare`: compares runs by their folders, or trains them first.

#ifndef QLORA_TOOLS_QLORA_COMPARE_H
#define QLORA_TOOLS_QLORA_COMPARE_H

#include <span>
#include <string>

#include "runtime/Base/CommandLine.h"
#include "runtime/Base/Status.h"

namespace qlora {

const Tool &compareTool();

/// `words` follow the command's name. Returns the text to print.
StatusOr<std::string> compare(std::span<const std::string> words);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_COMPARE_H
