// SPDX-License-Identifier: MIT

// Properties of a target, so that passes need not depend on its name.

#ifndef QLORA_COMPILER_SUPPORT_TARGETTRAITS_H
#define QLORA_COMPILER_SUPPORT_TARGETTRAITS_H

#include <cstdint>
#include <optional>
#include <string_view>

namespace qlora {

/// The default values are the traits of the target cpu.
struct TargetTraits {
  /// Kernels of the copy queue run concurrently with those of the compute
  /// queue. If not, the target runs both queues as one, in command order. (The
  /// communication queue runs concurrently on every target.)
  bool kernelsBesideCompute = false;
  /// One wide GEMM is faster than several narrow ones over the same input.
  bool prefersWideGemms = false;
  /// A GEMM that rounds an operand first writes the rounded copy to memory, in
  /// a separate kernel.
  bool roundsBeforeGemms = false;
  /// A GEMM decodes a stored weight a panel at a time, in cache. If not, it
  /// first decodes all of it, and decoding once for several GEMMs is faster.
  bool decodesInPanels = true;
  /// Some kernels become faster with large workspaces (`ROOMY` and `TUNE` in
  /// Kernels.def).
  bool hasRoomyKernels = false;
  /// Embedding tables, which are read by rows, may stay in host memory.
  bool offloadsTables = false;
  /// Alignment, in bytes, of the workspaces of library kernels.
  int64_t workspaceAlignment = 64;
};

/// Returns the traits of a target, or nullopt for an unknown name.
std::optional<TargetTraits> targetTraits(std::string_view target);

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_TARGETTRAITS_H
