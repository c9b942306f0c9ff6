// SPDX-License-Identifier: MIT

// Finds the programs that a tool starts. The compiler and the other tools share
// these rules, so that all find the same program.

#ifndef QLORA_RUNTIME_BASE_FINDPROGRAM_H
#define QLORA_RUNTIME_BASE_FINDPROGRAM_H

#include <optional>
#include <string>

#include "runtime/Base/Status.h"

namespace qlora {

/// Returns the path of a program: `name` itself if it has a slash, else the
/// first executable file of that name on $PATH, else the one in `folder`.
std::optional<std::string> findProgram(const std::string &name,
                                       const std::string &folder = "");

/// Returns the path of the CUDA compiler `given` (a path, or a name on $PATH).
/// If `given` is empty, looks for nvcc on $PATH and in `toolkit`. The error,
/// kUnavailable, names packages that contain nvcc.
StatusOr<std::string>
findCudaCompiler(const std::string &given,
                 const std::string &toolkit = "/usr/local/cuda/bin");

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_FINDPROGRAM_H
