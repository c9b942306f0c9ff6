// SPDX-License-Identifier: MIT

// The JSON header of a safetensors file, as text to data and back. Knows
// nothing of files, so that every bad input is a one-line test.

#ifndef QLORA_RUNTIME_WEIGHTS_SAFETENSORSHEADER_H
#define QLORA_RUNTIME_WEIGHTS_SAFETENSORSHEADER_H

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Weights/Safetensors.h"

namespace qlora {

/// The reference implementation's limit.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors; ///< sorted by offset
  std::map<std::string, std::string> metadata;
};

/// Parses and checks `text` against a data buffer of `bufferBytes`. Refuses
/// what is not UTF-8 JSON, a name twice, unknown dtypes, shapes that
/// overflow or disagree with the offsets, and any hole, overlap, missing or
/// extra byte in the buffer.
StatusOr<SafetensorsHeader> parseSafetensorsHeader(std::string_view text,
                                                   uint64_t bufferBytes);

/// The header's text for tensors in this order, padded with spaces to a
/// multiple of 8 bytes; the offsets are those in the tensors.
std::string
formatSafetensorsHeader(const std::vector<SafetensorsTensor> &tensors,
                        const std::map<std::string, std::string> &metadata);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_SAFETENSORSHEADER_H
