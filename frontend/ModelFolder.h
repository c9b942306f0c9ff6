// SPDX-License-Identifier: MIT

// What people give where a Hugging Face model folder is wanted, told apart:
// the name of a model on the hub, a file, an adapter, weights in other
// formats. The error says how to get to a model folder from there.

#ifndef QLORA_FRONTEND_MODELFOLDER_H
#define QLORA_FRONTEND_MODELFOLDER_H

#include <string>

#include "runtime/Base/Status.h"

namespace qlora {

/// `folder` as the user wrote it. Files are only looked at as far as it takes
/// to tell what they are: that they are whole is for their readers to say.
Status checkModelFolder(const std::string &folder);

} // namespace qlora

#endif // QLORA_FRONTEND_MODELFOLDER_H
