// SPDX-License-Identifier: MIT

// `qlora completion`: a script that completes commands, options and the values
// of those that have a choice, made from the option tables.

#ifndef QLORA_TOOLS_QLORA_COMPLETION_H
#define QLORA_TOOLS_QLORA_COMPLETION_H

#include <string>
#include <string_view>

#include "runtime/Base/Status.h"

namespace qlora {

/// `shell` is bash or zsh.
StatusOr<std::string> completionScript(std::string_view shell);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_COMPLETION_H
