// SPDX-License-Identifier: MIT

// Whether a shared library is whole, before dlopen maps it: touching a page
// beyond the end of a truncated file kills the process with SIGBUS.

#ifndef QLORA_RUNTIME_MODULE_ELFCHECK_H
#define QLORA_RUNTIME_MODULE_ELFCHECK_H

#include <string>

#include "runtime/Base/Status.h"

namespace qlora {

/// kNotFound without such a file; kDataLoss when it is not a 64-bit shared
/// ELF library whose segments and sections all lie within it.
Status checkElfFile(const std::string &path);

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_ELFCHECK_H
