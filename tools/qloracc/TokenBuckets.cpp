// SPDX-License-Identifier: MIT

// Shares of the largest bucket, and a look at the data.

#include "tools/qloracc/TokenBuckets.h"

#include <algorithm>
#include <filesystem>

#include "runtime/Weights/Safetensors.h"

namespace qlora {

std::vector<int64_t> tokenBuckets(int64_t tokens) {
  constexpr int64_t kOctaves = 3, kPerOctave = 4;
  constexpr int64_t kTile = 64; ///< rows that kernels like
  std::vector<int64_t> buckets;
  for (int64_t octave = kOctaves; octave > 0; --octave)
    for (int64_t share = kPerOctave; share < 2 * kPerOctave; ++share) {
      const int64_t size =
          (tokens * share / (kPerOctave << octave) + kTile - 1) / kTile * kTile;
      if (size > 0 && size < tokens &&
          (buckets.empty() || size > buckets.back()))
        buckets.push_back(size);
    }
  buckets.push_back(tokens);
  return buckets;
}

StatusOr<bool> wantsTokenBuckets(const Options &options) {
  const std::string choice = options.text("padding_free");
  if (choice != "auto")
    return choice == "true";
  const std::string file = options.text("train_file");
  if (file.empty() || std::filesystem::path(file).extension() != ".safetensors")
    return !file.empty();
  QLORA_ASSIGN_OR_RETURN(SafetensorsFile data, SafetensorsFile::open(file));
  return data.find("row_offsets") != nullptr;
}

} // namespace qlora
