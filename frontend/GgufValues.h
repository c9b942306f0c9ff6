// SPDX-License-Identifier: MIT

// The values of a GGUF file under the names of its Hugging Face folder: what
// llama.cpp computes with, for a program that reads such folders. Undoes the
// changes of GgufSource, so it needs the sources that the file was made from.

#ifndef QLORA_FRONTEND_GGUFVALUES_H
#define QLORA_FRONTEND_GGUFVALUES_H

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "frontend/GgufModel.h"
#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"

namespace qlora {

class GgufValues {
public:
  /// Opens PATH, a file of GgufWriter with the tensors of `sources`, whose data
  /// begin at `dataStart`. `sources` must outlive the reader.
  static StatusOr<GgufValues> open(const std::string &path,
                                   std::span<const GgufSource> sources,
                                   uint64_t dataStart);

  /// Whether the file has the values of this tensor of the folder.
  bool has(const std::string &name) const { return users.contains(name); }
  /// Reads a whole tensor of the folder, which has `count` elements.
  Status read(const std::string &name, int64_t count,
              std::vector<float> &out) const;
  /// Returns the SHA-256 of the values of each tensor of the file, as f32, by
  /// the tensor's name.
  StatusOr<std::map<std::string, std::string>> digests() const;

private:
  /// Receives values of a tensor of the file from element `first` on.
  using TakeValues =
      std::function<void(int64_t first, std::span<const float> values)>;

  GgufValues() = default;
  Status decode(size_t source, int64_t begin, int64_t end,
                const TakeValues &take) const;
  Status scatter(size_t source, size_t part, std::span<float> out) const;

  FileDescriptor file;
  std::string path;
  std::span<const GgufSource> sources;
  std::vector<uint64_t> offsets; ///< in the file, by source
  /// Name in the folder -> sources that have a part of it, and its number among
  /// their parts.
  std::multimap<std::string, std::pair<size_t, size_t>> users;
};

} // namespace qlora

#endif // QLORA_FRONTEND_GGUFVALUES_H
