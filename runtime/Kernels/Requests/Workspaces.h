// SPDX-License-Identifier: MIT

// How the CPU kernels lay out their workspaces. The rows' workspaceBytes sum
// the sizes stated here, and the kernels cut their workspace by the same
// functions, so that the two cannot drift apart.

#ifndef QLORA_RUNTIME_KERNELS_REQUESTS_WORKSPACES_H
#define QLORA_RUNTIME_KERNELS_REQUESTS_WORKSPACES_H

#include "runtime/Kernels/Requests/Requests.h"

namespace qlora::requests {

/// Partial sums that column_sum and clip_norm always make, whatever the
/// number of threads.
inline constexpr int64_t kColumnSumPartials = 16;
inline constexpr int64_t kClipNormPartials = 256;

/// Scratch of one matrix product c[m,n] = a[m,k] . b[k,n].
Size gemmWorkspace(qlora_dtype a, qlora_dtype b, qlora_dtype c, int64_t m,
                   int64_t n, int64_t k);

/// Scratch of one concurrent task of attention.
Size attentionSlot(int64_t length, int64_t dim);
Size attentionGradSlot(int64_t length, int64_t dim);

/// Workspace of head_loss and head_loss_grad.
Size headWorkspace(const KernelRequest &request, bool hasGradient);

} // namespace qlora::requests

#endif // QLORA_RUNTIME_KERNELS_REQUESTS_WORKSPACES_H
