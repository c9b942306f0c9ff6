// SPDX-License-Identifier: MIT

// Whether a file can be written where the user wants it, asked before the work
// that it is for.

#ifndef QLORA_RUNTIME_BASE_OUTPUTFILE_H
#define QLORA_RUNTIME_BASE_OUTPUTFILE_H

#include <cstdint>
#include <string>

#include "runtime/Base/Status.h"

namespace qlora {

/// That the folder of `path` exists, and that `path` itself is none.
Status checkOutputFile(const std::string &path);

/// An error that says how many bytes are missing where `folder` lies. What they
/// are for, and what else to do than to make room, is for the caller to say.
Status checkFreeSpace(const std::string &folder, uint64_t bytes);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_OUTPUTFILE_H
