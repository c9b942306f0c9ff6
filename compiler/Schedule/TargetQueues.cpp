// SPDX-License-Identifier: MIT

// The targets' queues as a table (TargetQueues.h).

#include "compiler/Schedule/TargetQueues.h"

using namespace qlora;

namespace {
struct TargetRow {
  llvm::StringLiteral target;
  TargetQueues queues;
};
} // namespace

static constexpr TargetRow kTargets[] = {
    // One pool of threads runs every kernel.
    {"cpu", {/*kernelsBesideCompute=*/false}},
    // A stream each.
    {"cuda", {/*kernelsBesideCompute=*/true}},
};

std::optional<TargetQueues> qlora::targetQueues(llvm::StringRef target) {
  for (const TargetRow &row : kTargets)
    if (row.target == target)
      return row.queues;
  return std::nullopt;
}
