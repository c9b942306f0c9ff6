// SPDX-License-Identifier: MIT

// Whether this CPU runs what was compiled for another.

#ifndef QLORA_RUNTIME_BASE_CPUFEATURES_H
#define QLORA_RUNTIME_BASE_CPUFEATURES_H

#include "runtime/Base/Status.h"

namespace qlora {

/// kUnavailable when this CPU lacks one of the comma-separated features;
/// names the missing ones.
Status checkCpuFeatures(const char *features);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_CPUFEATURES_H
