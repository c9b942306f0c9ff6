// SPDX-License-Identifier: MIT

// What passes know of a target without knowing which it is.

#ifndef QLORA_COMPILER_SUPPORT_TARGETTRAITS_H
#define QLORA_COMPILER_SUPPORT_TARGETTRAITS_H

#include <cstdint>
#include <optional>
#include <string_view>

namespace qlora {

struct TargetTraits {
  /// Kernels of the copy queue run beside those of the compute queue. If not,
  /// the target runs both in one, in the order of the commands. (Every target
  /// has the communication queue beside both.)
  bool kernelsBesideCompute = false;
  /// One wide GEMM is faster than several narrow ones over the same input.
  bool prefersWideGemms = false;
  /// A GEMM that rounds an operand writes the rounded copy to memory first, in
  /// a kernel of its own.
  bool roundsBeforeGemms = false;
  /// A product decodes a stored weight a panel at a time, in cache. If not, it
  /// decodes all of it first, and whoever does that once for several is faster.
  bool decodesInPanels = true;
  /// Some kernels have workspaces that are large and make them faster (`ROOMY`
  /// and `TUNE` in Kernels.def).
  bool hasRoomyKernels = false;
  /// Tables that are read by rows may stay in the host's memory.
  bool offloadsTables = false;
  /// Bytes that workspaces of library kernels begin at multiples of.
  int64_t workspaceAlignment = 64;
};

/// Of the target of that name; nullopt where there is none.
std::optional<TargetTraits> targetTraits(std::string_view target);

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_TARGETTRAITS_H
