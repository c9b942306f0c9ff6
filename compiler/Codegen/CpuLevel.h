// SPDX-License-Identifier: MIT

// The x86-64 microarchitecture levels (x86-64 psABI, section 3.1.1). Kernels
// are compiled for one level. train.so runs on any machine of that level, and
// the loader can name the features that a lower machine lacks.

#ifndef QLORA_COMPILER_CODEGEN_CPULEVEL_H
#define QLORA_COMPILER_CODEGEN_CPULEVEL_H

#include <string>

#include "runtime/Base/Status.h"

namespace qlora {

struct CpuLevel {
  std::string march;    ///< clang's name: "x86-64-v3"
  std::string features; ///< "avx,avx2,...", as /proc/cpuinfo names them
};

/// Returns the level named `march`, or for "native" the highest level that this
/// machine has.
StatusOr<CpuLevel> cpuLevel(const std::string &march);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_CPULEVEL_H
