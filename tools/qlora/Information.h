// SPDX-License-Identifier: MIT

// `qlora info`: what this machine has for training, and what is missing.

#ifndef QLORA_TOOLS_QLORA_INFORMATION_H
#define QLORA_TOOLS_QLORA_INFORMATION_H

#include <string>

namespace qlora {

/// Returns the text. Searches for libraries as the tools do when they start.
std::string machineInformation();

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_INFORMATION_H
