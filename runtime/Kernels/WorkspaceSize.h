// SPDX-License-Identifier: MIT

// How much workspace memory a plan allows for faster kernels.

#ifndef QLORA_RUNTIME_KERNELS_WORKSPACESIZE_H
#define QLORA_RUNTIME_KERNELS_WORKSPACESIZE_H

namespace qlora {

/// Workspace limits of a plan: the minimum, enough for kernels to run well, or
/// everything that makes a kernel faster.
enum class WorkspaceSize { kSmall, kModest, kLarge };

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_WORKSPACESIZE_H
