// SPDX-License-Identifier: MIT

// How much workspace memory a plan allows for faster kernels.

#ifndef QLORA_RUNTIME_KERNELS_WORKSPACESIZE_H
#define QLORA_RUNTIME_KERNELS_WORKSPACESIZE_H

namespace qlora {

/// Workspace limits of a plan. kSmall: the minimum; kModest: enough for kernels
/// to run well; kLarge: as much as makes any kernel faster.
enum class WorkspaceSize { kSmall, kModest, kLarge };

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_WORKSPACESIZE_H
