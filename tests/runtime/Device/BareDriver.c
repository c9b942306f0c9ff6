/* SPDX-License-Identifier: MIT */

/* A driver, a cuBLASLt and a cuDNN that return their versions only. */

#include <stddef.h>

size_t cublasLtGetVersion(void) { return 10 * QLORA_DRIVER_VERSION; }

size_t cudnnGetVersion(void) { return QLORA_CUDNN_VERSION; }

int cuDriverGetVersion(int *version) {
  *version = QLORA_DRIVER_VERSION;
  return 0;
}
