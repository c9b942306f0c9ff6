// SPDX-License-Identifier: MIT

// Usage: SealModule FILE. Seals a module that was written by hand, as qloracc
// seals its output.

#include <fstream>

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/UserFiles.h"

int main(int, char **argv) {
  auto bytes = qlora::readWholeFile(argv[1]);
  if (!bytes.isOk())
    return 1;
  return std::ofstream(argv[1], std::ios::binary) << qlora::sealed(*bytes) ? 0
                                                                           : 1;
}
