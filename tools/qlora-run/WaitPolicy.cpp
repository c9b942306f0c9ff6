// SPDX-License-Identifier: MIT

// The variable, and the second start.

#include "tools/qlora-run/WaitPolicy.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>

namespace qlora {

void boundBusyWaiting([[maybe_unused]] char **argv) {
#ifdef _OPENMP
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT"))
    return;
  setenv("GOMP_SPINCOUNT", "1000", /*overwrite=*/1);
  // By its path, so that the process keeps its name.
  char program[PATH_MAX] = {};
  if (readlink("/proc/self/exe", program, sizeof program - 1) > 0)
    execv(program, argv);
    // Where that fails the run is right all the same, and its ranks have it.
#endif
}

} // namespace qlora
