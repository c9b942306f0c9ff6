// SPDX-License-Identifier: MIT

// Reading and checking of tokens, for both kinds of data file.

#ifndef QLORA_RUNTIME_DATA_TOKENCHECKS_H
#define QLORA_RUNTIME_DATA_TOKENCHECKS_H

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

/// A tensor of i32 with exactly this shape, copied.
StatusOr<std::vector<int32_t>> readInt32(const SafetensorsFile &file,
                                         std::string_view name,
                                         const std::vector<int64_t> &shape);

bool isToken(int32_t id, int64_t vocabSize);
/// A token, or -100.
bool isLabel(int32_t label, int64_t vocabSize);

/// The errors of a place: which of the two is wrong, and a file without any
/// target.
Status badToken(const std::string &where, int32_t id, int32_t label,
                int64_t vocabSize);
Status noLabels(const std::string &path);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_TOKENCHECKS_H
