// SPDX-License-Identifier: MIT

// How much memory a plan gives to what makes kernels faster.

#ifndef QLORA_RUNTIME_KERNELS_WORKSPACESIZE_H
#define QLORA_RUNTIME_KERNELS_WORKSPACESIZE_H

namespace qlora {

/// What the workspaces of a plan may take: as little as can be, what a kernel
/// needs to run well, or all that makes it faster.
enum class WorkspaceSize { kSmall, kModest, kLarge };

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_WORKSPACESIZE_H
