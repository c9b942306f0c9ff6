// SPDX-License-Identifier: MIT

// What a data file is, as far as a program is compiled for it. The compiler and
// the names of its cached programs ask here, so that they never disagree.

#ifndef QLORA_RUNTIME_DATA_TOKENFILES_H
#define QLORA_RUNTIME_DATA_TOKENFILES_H

#include <string>
#include <vector>

#include "runtime/Base/DataValues.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Safetensors files are used as they are; anything else qlora-data reads.
bool isTokenData(const std::string &path);

/// Whether one of them has rows of lengths of their own: text, or a rows file
/// of qlora-data, and no micro-batches.
StatusOr<bool> hasRows(const std::vector<WeightedPath> &files);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_TOKENFILES_H
