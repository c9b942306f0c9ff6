// SPDX-License-Identifier: MIT

// The targets as a table (TargetTraits.h).

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
    // One pool of threads runs every kernel, and fills itself with any GEMM.
    // Packing rounds on the way.
    {"cpu",
     {/*kernelsBesideCompute=*/false, /*prefersWideGemms=*/false,
      /*roundsBeforeGemms=*/false, /*decodesInPanels=*/true,
      /*hasRoomyKernels=*/false, /*offloadsTables=*/false,
      /*workspaceAlignment=*/64}},
    // A stream each; a narrow GEMM has too few tiles for all multiprocessors;
    // cuBLASLt takes operands of one type, and numbers only.
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
