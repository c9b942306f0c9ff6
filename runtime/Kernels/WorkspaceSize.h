// SPDX-License-Identifier: MIT

// How much workspace memory a plan allows for faster kernels.

#ifndef QLORA_RUNTIME_KERNELS_WORKSPACESIZE_H
#define QLORA_RUNTIME_KERNELS_WORKSPACESIZE_H

namespace qlora {

/// Workspace limits of a plan. kSmall: the minimum; kModest: enough for all
/// kernels to run well; kLarge: as much as speeds up any kernel.
enum class WorkspaceSize { kSmall, kModest, kLarge };

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_WORKSPACESIZE_H
