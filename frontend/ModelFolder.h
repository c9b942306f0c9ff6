// SPDX-License-Identifier: MIT

// Detects what users give instead of a Hugging Face model folder: the name of a
// model on the hub, a file, an adapter, weights in other formats. The error
// says how to get a model folder from there.

#ifndef QLORA_FRONTEND_MODELFOLDER_H
#define QLORA_FRONTEND_MODELFOLDER_H

#include <string>

#include "runtime/Base/Status.h"

namespace qlora {

/// `folder` is as the user wrote it. Reads files only as far as needed to
/// identify them; their readers check that they are complete.
Status checkModelFolder(const std::string &folder);

} // namespace qlora

#endif // QLORA_FRONTEND_MODELFOLDER_H
