/* SPDX-License-Identifier: MIT */

/* A driver that knows its version and nothing else. */

int cuDriverGetVersion(int *version) {
  *version = QLORA_DRIVER_VERSION;
  return 0;
}
