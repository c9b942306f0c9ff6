// SPDX-License-Identifier: MIT

// Properties of data files that affect compilation. The names of cached
// programs depend on these properties too.

#ifndef QLORA_RUNTIME_DATA_TOKENFILES_H
#define QLORA_RUNTIME_DATA_TOKENFILES_H

#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Options/DataValues.h"

namespace qlora {

/// Whether the file is Safetensors, which needs no conversion by qlora-data.
bool isTokenData(const std::string &path);

/// Whether any file has rows of different lengths: text, or a rows file of
/// qlora-data, rather than micro-batches.
StatusOr<bool> hasRows(const std::vector<WeightedPath> &files);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_TOKENFILES_H
