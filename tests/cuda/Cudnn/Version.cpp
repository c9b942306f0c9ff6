// SPDX-License-Identifier: MIT

// A cuDNN that is too old to be used: on the platform our own attention runs,
// whatever the machine has installed.

#include <cstddef>

extern "C" size_t cudnnGetVersion() { return 90000; }
