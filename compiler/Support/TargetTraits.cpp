// SPDX-License-Identifier: MIT

// Lists the targets as a table.

#include "compiler/Support/TargetTraits.h"

#include "runtime/Kernels/Plans/CudaWorkspaces.h"

using namespace qlora;

namespace {
struct TargetRow {
  std::string_view target;
  TargetTraits traits;
};
} // namespace

static constexpr TargetRow kTargets[] = {
    // One thread pool runs every kernel, and even a narrow GEMM uses all
    // threads. Operands are rounded while a GEMM packs them.
    {"cpu",
     {/*kernelsBesideCompute=*/false, /*prefersWideGemms=*/false,
      /*roundsBeforeGemms=*/false, /*decodesInPanels=*/true,
      /*hasRoomyKernels=*/false, /*offloadsTables=*/false,
      /*workspaceAlignment=*/64}},
    // Each queue has a stream. A narrow GEMM has too few tiles for all
    // multiprocessors. cuBLASLt needs decoded operands of the same type.
    {"cuda",
     {/*kernelsBesideCompute=*/true, /*prefersWideGemms=*/true,
      /*roundsBeforeGemms=*/true, /*decodesInPanels=*/false,
      /*hasRoomyKernels=*/true, /*offloadsTables=*/true,
      plans::kCudaAlignment}},
};

std::optional<TargetTraits> qlora::targetTraits(std::string_view target) {
  for (const TargetRow &row : kTargets)
    if (row.target == target)
      return row.traits;
  return std::nullopt;
}
