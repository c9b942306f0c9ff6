// SPDX-License-Identifier: MIT

// Space on a disk that is there when it is needed. What for, and what else to
// do than to make room, is for the caller to say.

#ifndef QLORA_RUNTIME_BASE_DISKSPACE_H
#define QLORA_RUNTIME_BASE_DISKSPACE_H

#include <cstdint>
#include <string>

#include "runtime/Base/Status.h"

namespace qlora {

/// An error that says how many bytes are missing where `folder` lies.
Status checkFreeSpace(const std::string &folder, uint64_t bytes);

/// Creates a file of `bytes` that has its blocks, so that writing into it
/// needs none. A file system that cannot set blocks aside gets a byte written
/// into each; where it also compresses, or writes elsewhere what is written
/// again (ZFS), that is a look at the space and no promise.
Status reserveFile(const std::string &path, uint64_t bytes);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_DISKSPACE_H
