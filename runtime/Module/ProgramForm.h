// SPDX-License-Identifier: MIT

// The form of a program: whatever affects the content of files and checkpoints,
// or the order of collectives. Ranks that run together need programs of the
// same form. Within a form, each rank may have its own plan (recomputation,
// early decoding, host memory), as its GPU's memory allows.

#ifndef QLORA_RUNTIME_MODULE_PROGRAMFORM_H
#define QLORA_RUNTIME_MODULE_PROGRAMFORM_H

#include <string>

#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Returns a digest of all stages; it differs between compiler versions.
std::string programForm(const LoadedModule &module);

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_PROGRAMFORM_H
