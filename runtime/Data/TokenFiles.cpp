// SPDX-License-Identifier: MIT

// Tests file name extensions and reads the names of tensors.

#include "runtime/Data/TokenFiles.h"

#include <filesystem>

#include "runtime/Weights/Safetensors.h"

namespace qlora {

bool isTokenData(const std::string &path) {
  return std::filesystem::path(path).extension() == ".safetensors";
}

StatusOr<bool> hasRows(const std::vector<WeightedPath> &files) {
  for (const auto &[path, weight] : files) {
    if (!isTokenData(path))
      return true;
    QLORA_ASSIGN_OR_RETURN(const SafetensorsFile data,
                           SafetensorsFile::open(path));
    if (data.find("row_offsets"))
      return true;
  }
  return false;
}

} // namespace qlora
