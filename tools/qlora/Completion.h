// SPDX-License-Identifier: MIT

// `qlora completion`: a shell script, made from the option tables, that
// completes commands, options and the values of choice options.

#ifndef QLORA_TOOLS_QLORA_COMPLETION_H
#define QLORA_TOOLS_QLORA_COMPLETION_H

#include <string>
#include <string_view>

#include "runtime/Base/Status.h"

namespace qlora {

/// Returns the script for `shell`, which is bash or zsh.
StatusOr<std::string> completionScript(std::string_view shell);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_COMPLETION_H
