// SPDX-License-Identifier: MIT

// Compares the features that generated kernels need with those that the
// kernel reports for this CPU.

#include "runtime/Base/CpuFeatures.h"

#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace qlora {

/// Words of the "flags" (x86) or "Features" (Arm) line of the first CPU.
static std::set<std::string> readCpuFeatures() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (!line.starts_with("flags") && !line.starts_with("Features"))
      continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    std::set<std::string> features;
    for (std::string word; words >> word;)
      features.insert(word);
    return features;
  }
  return {};
}

Status checkCpuFeatures(const char *needed) {
  const std::set<std::string> present = readCpuFeatures();
  std::istringstream list(needed);
  std::vector<std::string> missing;
  for (std::string feature; std::getline(list, feature, ',');)
    if (!feature.empty() && !present.contains(feature))
      missing.push_back(feature);
  if (missing.empty())
    return Status::ok();
  return Status::error(StatusCode::kUnavailable,
                       "it was compiled for instructions that this CPU lacks: "
                       "{}; compile the model on this machine",
                       fmt::join(missing, ", "));
}

} // namespace qlora
