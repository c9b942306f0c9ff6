/* SPDX-License-Identifier: MIT */

/* A driver, and a cuBLASLt, that knows its version and nothing else. */

#include <stddef.h>

size_t cublasLtGetVersion(void) { return 10 * QLORA_DRIVER_VERSION; }

int cuDriverGetVersion(int *version) {
  *version = QLORA_DRIVER_VERSION;
  return 0;
}
