// SPDX-License-Identifier: MIT

// Reading of /proc/self/status.

#include "runtime/Base/ProcessMemory.h"

#include <fstream>
#include <string>

namespace qlora {

ProcessMemory readProcessMemory() {
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  std::string key;
  while (status >> key) {
    uint64_t kibibytes = 0;
    if (key == "VmRSS:" && status >> kibibytes)
      memory.residentBytes = kibibytes << 10;
    else if (key == "VmHWM:" && status >> kibibytes)
      memory.peakBytes = kibibytes << 10;
    status.ignore(4096, '\n');
  }
  return memory;
}

} // namespace qlora
