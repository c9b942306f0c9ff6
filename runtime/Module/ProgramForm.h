// SPDX-License-Identifier: MIT

// What the programs of ranks that run together have alike: what files and
// checkpoints have of them, and what ranks do together, in its order. Beside it
// each rank may have a plan of its own (what is recomputed, decoded ahead, or in
// host memory), as its card has room.

#ifndef QLORA_RUNTIME_MODULE_PROGRAMFORM_H
#define QLORA_RUNTIME_MODULE_PROGRAMFORM_H

#include <string>

#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// A digest of it, of all stages; another version of the compiler is another form.
std::string programForm(const LoadedModule &module);

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_PROGRAMFORM_H
