// SPDX-License-Identifier: MIT

// Detects common mistakes for a Hugging Face model folder: a hub name, a file,
// an adapter, or weights in other formats. The error explains how to get the
// model folder.

#ifndef QLORA_FRONTEND_MODELFOLDER_H
#define QLORA_FRONTEND_MODELFOLDER_H

#include <string>

#include "runtime/Base/Status.h"

namespace qlora {

/// Refuses `folder`, as the user wrote it, if it is not a model folder. Reads
/// files only as far as needed to identify them. Does not check that they are
/// complete.
Status checkModelFolder(const std::string &folder);

} // namespace qlora

#endif // QLORA_FRONTEND_MODELFOLDER_H
