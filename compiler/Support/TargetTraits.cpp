// SPDX-License-Identifier: MIT

// Defines the traits of each target.

#include "compiler/Support/TargetTraits.h"

#include "runtime/Kernels/Plans/CudaWorkspaces.h"

using namespace qlora;

std::optional<TargetTraits> qlora::targetTraits(std::string_view target) {
  // One thread pool runs every kernel, and even a narrow GEMM uses all threads.
  // Operands are rounded while a GEMM packs them.
  if (target == "cpu")
    return TargetTraits();
  // Each queue has its own stream. A narrow GEMM has too few tiles for all
  // multiprocessors. cuBLASLt needs decoded operands of the same type.
  if (target == "cuda")
    return TargetTraits{.kernelsBesideCompute = true,
                        .prefersWideGemms = true,
                        .roundsBeforeGemms = true,
                        .decodesInPanels = false,
                        .hasRoomyKernels = true,
                        .offloadsTables = true,
                        .workspaceAlignment = plans::kCudaAlignment};
  return std::nullopt;
}
