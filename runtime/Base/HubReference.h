// SPDX-License-Identifier: MIT

// References to data sets of the Hugging Face hub, which may be given instead
// of paths of data. qlora-data reads them (qlora_data/hub_reference.py):
//
//   hf://datasets/OWNER/NAME@REVISION?config=SUBSET&split=train[:10%]

#ifndef QLORA_RUNTIME_BASE_HUBREFERENCE_H
#define QLORA_RUNTIME_BASE_HUBREFERENCE_H

#include <string>
#include <string_view>

namespace qlora {

inline constexpr std::string_view kHubPrefix = "hf://datasets/";

inline bool isHubReference(std::string_view path) {
  return path.starts_with(kHubPrefix);
}

/// Returns the name of some data for display: "OWNER/NAME, SUBSET, SPLIT" for a
/// reference, the file name for a path.
std::string dataTitle(const std::string &path);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_HUBREFERENCE_H
