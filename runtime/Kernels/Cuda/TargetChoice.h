// SPDX-License-Identifier: MIT

// Resolves --target and --cuda-arch on this machine. qloracc and all commands
// of qlora call it, so their choices agree:
//
//   --target auto     cuda if a GPU of this machine is usable and a CUDA
//                     compiler is installed; else cpu
//   --cuda-arch native   the architectures of this machine's GPUs
//               all      every supported architecture, and PTX for later ones
//               none     no device code, for a plan that runs no kernel
//
// With auto, a named device profile or architecture decides the target.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_TARGETCHOICE_H
#define QLORA_RUNTIME_KERNELS_CUDA_TARGETCHOICE_H

#include <string>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

/// Keywords of --cuda-arch. A keyword must be the option's only value.
inline constexpr const char *kNativeArchs = "native", *kAllArchs = "all",
                            *kNoArchs = "none";

struct TargetRequest {
  std::string target = "auto"; ///< --target
  std::vector<std::string> archs = {kNativeArchs}; ///< --cuda-arch
  std::string cudaCompiler; ///< --cuda-compiler
  std::string profile;      ///< --device-profile, or empty
  /// Whether device code is compiled. If not, `archs` is ignored.
  bool hasKernels = true;
  /// Whether qloracc is installed. If not, only compiled programs can run, and
  /// auto needs no CUDA compiler.
  bool hasCompiler = true;
};

struct TargetChoice {
  std::string target; ///< "cpu" or "cuda"
  /// Argument of CudaTarget::parseArchs; empty for cpu or without device code.
  std::vector<std::string> archs;
  /// Message for the user if auto leaves a GPU idle; else empty.
  std::string warning;
};

/// Returns kNotFound or kUnavailable if `native` is requested and no GPU is
/// usable. The message says why and suggests an option. Uses no GPU memory.
StatusOr<TargetChoice> chooseTarget(const TargetRequest &request);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_TARGETCHOICE_H
