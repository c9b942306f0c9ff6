// SPDX-License-Identifier: MIT

// What --target and --cuda-arch mean on this machine. qloracc and all commands
// of qlora ask here, so that they never choose differently:
//
//   --target auto     cuda if a GPU of this machine can be used and there is a
//                     CUDA compiler for it; else cpu
//   --cuda-arch native   the architectures of this machine's GPUs
//               all      every architecture that is supported, and PTX
//               none     no device code: for a plan, which runs no kernel
//
// A device profile that is named decides auto: a plan for an H100 is a plan for
// CUDA. So does an architecture that is named.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_TARGETCHOICE_H
#define QLORA_RUNTIME_KERNELS_CUDA_TARGETCHOICE_H

#include <string>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

/// --cuda-arch's words for lists of architectures; each is given alone.
inline constexpr const char *kNativeArchs = "native", *kAllArchs = "all",
                            *kNoArchs = "none";

struct TargetRequest {
  std::string target = "auto"; ///< --target
  std::vector<std::string> archs = {kNativeArchs}; ///< --cuda-arch
  std::string cudaCompiler; ///< --cuda-compiler
  std::string profile;      ///< --device-profile, or empty
  /// False: no device code is wanted, whatever `archs` says.
  bool hasKernels = true;
  /// Whether qloracc is on this machine. If not, auto needs no CUDA compiler:
  /// a program that was compiled before is run.
  bool hasCompiler = true;
};

struct TargetChoice {
  std::string target; ///< "cpu" or "cuda"
  /// What CudaTarget::parseArchs takes; empty: no device code. For cpu empty.
  std::vector<std::string> archs;
  /// A line for the user if auto leaves a GPU idle; else empty.
  std::string warning;
};

/// kNotFound or kUnavailable: `native` is asked for, and no GPU can be used;
/// the message says why and what to write. Takes no memory of a GPU.
StatusOr<TargetChoice> chooseTarget(const TargetRequest &request);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_TARGETCHOICE_H
