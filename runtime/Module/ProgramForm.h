// SPDX-License-Identifier: MIT

// The form of a program: whatever affects the content of files and checkpoints,
// or the order of collectives. Ranks that run together need programs of the
// same form. Programs of the same form may differ in the plan (recomputation,
// early decoding, host memory), as the memory of each rank's GPU allows.

#ifndef QLORA_RUNTIME_MODULE_PROGRAMFORM_H
#define QLORA_RUNTIME_MODULE_PROGRAMFORM_H

#include <string>

#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Returns a digest of all stages; it differs between compiler versions.
std::string programForm(const LoadedModule &module);

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_PROGRAMFORM_H
