// SPDX-License-Identifier: MIT

// Whether a file can be written where the user wants it, asked before the work
// that it is for.

#ifndef QLORA_RUNTIME_BASE_OUTPUTFILE_H
#define QLORA_RUNTIME_BASE_OUTPUTFILE_H

#include <string>

#include "runtime/Base/Status.h"

namespace qlora {

/// That the folder of `path` exists, and that `path` itself is none.
Status checkOutputFile(const std::string &path);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_OUTPUTFILE_H
