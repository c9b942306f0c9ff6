// SPDX-License-Identifier: MIT

// The variable, and the second start.

#include "tools/qlora-run/WaitPolicy.h"

#include <dlfcn.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>

namespace qlora {

/// Whether libgomp, and no other runtime, is the one that is loaded.
static bool usesLibgomp() {
  void *library = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library)
    dlclose(library);
  return library != nullptr;
}

/// Whether /proc/self/exe is this program. It is the loader where that was
/// called with the program's name: then the kernel has loaded no other one.
static bool isOwnExecutable() { return getauxval(AT_BASE) != 0; }

void boundBusyWaiting(char **argv) {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT"))
    return;
  setenv("GOMP_SPINCOUNT", "1000", /*overwrite=*/1);
  if (!usesLibgomp() || !isOwnExecutable())
    return; // its ranks have it
  // By its path, so that the process keeps its name.
  char program[PATH_MAX] = {};
  if (readlink("/proc/self/exe", program, sizeof program - 1) > 0)
    execv(program, argv);
  // Where that fails the run is right all the same.
}

} // namespace qlora
