// SPDX-License-Identifier: MIT

// A writer of GGUF files, version 3, little endian.
//
//   header   magic, version, number of tensors, number of keys
//   keys     name, type, value
//   tensors  name, dimensions (innermost first), type, offset
//   data     each tensor at a multiple of 32 bytes
//
// The table of tensors precedes their data. So the writer needs all shapes and
// types first, and then takes the data in that order, in any number of runs.

#ifndef QLORA_RUNTIME_GGUF_GGUFFILE_H
#define QLORA_RUNTIME_GGUF_GGUFFILE_H

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/Base/AtomicFile.h"
#include "runtime/Base/Status.h"
#include "runtime/Gguf/GgufType.h"

namespace qlora {

/// The value of a key. A vector becomes an array of the same type.
using GgufValue =
    std::variant<uint32_t, int32_t, float, bool, std::string, uint64_t,
                 std::vector<uint32_t>, std::vector<int32_t>,
                 std::vector<float>, std::vector<bool>,
                 std::vector<std::string>>;

/// Keys in file order.
using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::kF32;
  std::vector<int64_t> shape; ///< outermost dimension first, as in safetensors

  int64_t elements() const;
  int64_t bytes() const { return ggufBytes(type, elements()); }
};

/// Longest name of a tensor that llama.cpp reads, in bytes.
inline constexpr size_t kMaxGgufName = 63;
inline constexpr uint64_t kGgufAlignment = 32;
/// Rounds up to a multiple of kGgufAlignment.
constexpr uint64_t ggufAligned(uint64_t bytes) {
  return (bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
}

class GgufWriter {
public:
  /// Creates PATH and writes everything except the data. Allocates the disk
  /// space of the whole file. Refuses repeated or too long names and shapes
  /// that llama.cpp cannot have.
  static StatusOr<GgufWriter> create(const std::string &path,
                                     const GgufMetadata &metadata,
                                     std::vector<GgufTensor> tensors);

  /// Appends the next bytes of the data, which may not go beyond the end of the
  /// current tensor.
  Status append(std::span<const uint8_t> bytes);
  /// Ends the file. All tensors must be complete.
  Status commit();

  uint64_t bytes() const { return totalBytes; }
  /// Offset of the first tensor's data in the file.
  uint64_t dataStart() const { return headBytes; }

private:
  GgufWriter(AtomicFile file, std::vector<GgufTensor> tensors)
      : file(std::move(file)), tensors(std::move(tensors)) {}

  AtomicFile file;
  std::vector<GgufTensor> tensors;
  size_t current = 0;        ///< index of the tensor that append() continues
  uint64_t currentBytes = 0; ///< bytes of it so far
  uint64_t headBytes = 0;    ///< before the data
  uint64_t totalBytes = 0;   ///< of the file
};

} // namespace qlora

#endif // QLORA_RUNTIME_GGUF_GGUFFILE_H
