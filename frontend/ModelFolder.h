// SPDX-License-Identifier: MIT

// Detects common mistakes for a Hugging Face model folder: the name of a model
// on the hub, a file, an adapter, weights in other formats. The error says how
// to get the model folder.

#ifndef QLORA_FRONTEND_MODELFOLDER_H
#define QLORA_FRONTEND_MODELFOLDER_H

#include <string>

#include "runtime/Base/Status.h"

namespace qlora {

/// Refuses a `folder`, as the user wrote it, that is no model folder. Reads
/// files only as far as needed to identify them, and does not check that they
/// are complete.
Status checkModelFolder(const std::string &folder);

} // namespace qlora

#endif // QLORA_FRONTEND_MODELFOLDER_H
