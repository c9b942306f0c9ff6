// SPDX-License-Identifier: MIT

// `--print`: a module's entries and commands as text, one command per line:
//
//   entry accumulate_last 2 x 32: 214 commands
//      0 compute        launch   layers.0/q_proj  matmul.onednn
//          read activation+0x400 [16384] write activation+0x8400 [16384]

#ifndef QLORA_RUNTIME_MODULE_PROGRAMTEXT_H
#define QLORA_RUNTIME_MODULE_PROGRAMTEXT_H

#include <string>

#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Returns the text of all stages of a pipeline, one after the other.
std::string programText(const LoadedModule &module);

/// Returns the text of one command, without its index.
std::string commandText(const LoadedModule &module,
                        const qlora_command &command);

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_PROGRAMTEXT_H
