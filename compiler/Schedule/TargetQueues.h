// SPDX-License-Identifier: MIT

// Which of enum qlora_queue run side by side on a target.

#ifndef QLORA_COMPILER_SCHEDULE_TARGETQUEUES_H
#define QLORA_COMPILER_SCHEDULE_TARGETQUEUES_H

#include "llvm/ADT/StringRef.h"

#include <optional>

namespace qlora {

/// Every target has the compute queue, and the communication queue beside it.
struct TargetQueues {
  /// Kernels of the copy queue run beside those of the compute queue. If not,
  /// the target runs both in one, in the order of the commands.
  bool kernelsBesideCompute = false;
};

/// Of the target of that name; nullopt where there is none.
std::optional<TargetQueues> targetQueues(llvm::StringRef target);

} // namespace qlora

#endif // QLORA_COMPILER_SCHEDULE_TARGETQUEUES_H
