// SPDX-License-Identifier: MIT

// The common form of programs whose ranks run together: the content of files
// and checkpoints, and the collectives in their order. Otherwise each rank may
// have its own plan (recomputation, decoding ahead, host memory), as its GPU's
// memory allows.

#ifndef QLORA_RUNTIME_MODULE_PROGRAMFORM_H
#define QLORA_RUNTIME_MODULE_PROGRAMFORM_H

#include <string>

#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Returns a digest of all stages; it differs between compiler versions.
std::string programForm(const LoadedModule &module);

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_PROGRAMFORM_H
